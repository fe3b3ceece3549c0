"""Equality and change of JSON values, as the rules of both stores use them."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from docket_celery.errors import InvalidInput
from docket_celery.run.moment import Appended, Replaced
from docket_celery.storage.contracts.rules import apply_changes, owner_of, same_value
from docket_celery.storage.contracts.values import SYSTEM, TENANTLESS, Scope

DIFFERENT: list[tuple[Any, Any]] = [
    (1, 1.0),
    (1, True),
    (0, False),
    (0.0, False),
    (None, False),
    ("1", 1),
    ([], {}),
    ([1], [1.0]),
    ([1], [1, 1]),
    ({"a": 1}, {"a": True}),
    ({"a": 1}, {"b": 1}),
    ({"a": None}, {}),
]


@pytest.mark.parametrize(("left", "right"), DIFFERENT)
def test_values_of_different_type_or_shape_are_not_the_same(left: Any, right: Any) -> None:
    assert not same_value(left, right)
    assert not same_value(right, left)


@pytest.mark.parametrize("value", [None, True, 1, 1.5, "", "x", [], [1, [2.0]], {}, {"a": {"b": [None]}}])
def test_a_value_is_the_same_as_its_copy(value: Any) -> None:
    assert same_value(value, copy.deepcopy(value))


def test_objects_are_the_same_in_any_order_of_keys() -> None:
    assert same_value({"a": 1, "b": 2}, {"b": 2, "a": 1})


def test_changes_leave_the_fields_they_came_from_untouched() -> None:
    before = {"n": 1, "log": ["a"]}
    after = apply_changes(before, (Replaced(name="n", value=2), Appended(name="log", items=("b",))))
    assert before == {"n": 1, "log": ["a"]}
    assert after == {"n": 2, "log": ["a", "b"]}


def test_an_append_begins_a_missing_list_and_leaves_anything_else() -> None:
    assert apply_changes({"text": "x"}, (Appended(name="text", items=(1,)), Appended(name="new", items=(1,)))) == {
        "text": "x",
        "new": [1],
    }


def test_owner_scopes_name_the_tenant_and_the_system_owns_nothing() -> None:
    assert owner_of(TENANTLESS) is None
    assert owner_of(Scope.of("acme")) == "acme"
    with pytest.raises(InvalidInput):
        owner_of(SYSTEM)
