"""Reducers: folds over JSON values."""

from __future__ import annotations

import copy
import time
from typing import Any

import pytest

from docket_celery.errors import ValueRefused
from docket_celery.graph.reducers import REDUCERS


@pytest.mark.parametrize(
    ("name", "committed", "writes", "result"),
    [
        ("last_value", 1, [2, 3], 3),
        ("first_value", 1, [2, 3], 1),
        ("first_value", None, [2], None),
        ("append", [1], [[2, 3], 4, [], [[5]], None], [1, 2, 3, 4, [5], None]),
        ("merge", {"a": 1, "b": {"x": 1}}, [{"b": {"y": 2}}, {"c": 3}], {"a": 1, "b": {"y": 2}, "c": 3}),
        ("sum", 2**63 - 1, [1], 2**63),
        ("sum", 1, [0.5, 1], 2.5),
        ("union", [{"a": 1}], [[{"a": 1}, {"a": 2}]], [{"a": 1}, {"a": 2}]),
        ("union", [], ["a", "b", "a", ["b", "c"]], ["a", "b", "c"]),
    ],
)
def test_writes_are_folded_onto_the_committed_value(name: str, committed: Any, writes: list[Any], result: Any) -> None:
    given = copy.deepcopy((committed, writes))
    assert REDUCERS[name].reduce(committed, True, writes) == result
    assert (committed, writes) == given, "the arguments are left alone"


@pytest.mark.parametrize(
    ("name", "result"), [("last_value", {"b": 2}), ("first_value", {"a": 1}), ("append", [{"a": 1}, {"b": 2}])]
)
def test_without_a_committed_value_the_writes_stand_alone(name: str, result: Any) -> None:
    assert REDUCERS[name].reduce("ignored", False, [{"a": 1}, {"b": 2}]) == result


@pytest.mark.parametrize(("name", "zero"), [("append", []), ("merge", {}), ("sum", 0), ("union", [])])
def test_a_natural_zero_is_made_afresh_each_time(name: str, zero: Any) -> None:
    make = REDUCERS[name].zero
    assert make is not None
    assert REDUCERS[name].has_zero
    assert make() == zero
    if zero != 0:
        assert make() is not make()


def test_values_without_a_zero_start_unset_and_only_append_appends() -> None:
    assert not REDUCERS["last_value"].has_zero
    assert not REDUCERS["first_value"].has_zero
    assert [name for name, reducer in REDUCERS.items() if reducer.appends] == ["append"]


def test_union_tells_apart_what_json_tells_apart() -> None:
    union = REDUCERS["union"].reduce([], True, [[1, 1.0, True, "1", None, False, 0, [1], [1.0], [True], 1]])
    assert [(type(item), item) for item in union] == [
        (type(item), item) for item in [1, 1.0, True, "1", None, False, 0, [1], [1.0], [True]]
    ]
    assert REDUCERS["union"].reduce([{"a": 1, "b": 2}], True, [[{"b": 2, "a": 1}]]) == [{"a": 1, "b": 2}]


def test_union_of_many_items_takes_time_in_proportion() -> None:
    items = [f"item {number}" for number in range(50_000)]
    started = time.process_time()
    assert len(REDUCERS["union"].reduce(items, True, [items, list(range(50_000))])) == 100_000
    assert time.process_time() - started < 5


@pytest.mark.parametrize("write", [True, None, "1", [1]])
def test_sum_takes_numbers_only(write: Any) -> None:
    assert "must be a number" in str(REDUCERS["sum"].problem(write))
    assert REDUCERS["sum"].problem(10**400) is None


@pytest.mark.parametrize("write", [None, [], "x", 1])
def test_merge_takes_objects_only(write: Any) -> None:
    assert "must be an object" in str(REDUCERS["merge"].problem(write))
    assert REDUCERS["merge"].problem({}) is None


def test_a_sum_that_a_float_cannot_hold_is_refused() -> None:
    for writes in ([1e308, 1e308], [10**400, 1.5]):
        with pytest.raises(ValueRefused):
            REDUCERS["sum"].reduce(0, True, writes)


def test_normalising_a_write_twice_changes_nothing() -> None:
    for reducer in REDUCERS.values():
        for write in (1, [1], [[1]], {"a": 1}, None):
            assert reducer.normalise(reducer.normalise(write)) == reducer.normalise(write)


def test_a_committed_value_of_another_kind_is_told() -> None:
    for name in ("append", "union"):
        assert REDUCERS[name].problem_of_value({}) == "must be a list, got dict"
    assert REDUCERS["sum"].problem_of_value(None) == "must be a number, got null"
    assert REDUCERS["last_value"].problem_of_value(None) is None
