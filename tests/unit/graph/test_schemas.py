"""Schemas and revivers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, NewType, Optional
from uuid import UUID

import pytest
from pydantic import BaseModel

from docket_celery.errors import GraphFormatError
from docket_celery.graph.schemas import LONGEST_MESSAGE, Schema, json_schema_of, reviver


@dataclass
class Point:
    x: int


class Order(BaseModel):
    at: datetime


class Colour(Enum):
    RED = "red"


OrderId = NewType("OrderId", str)


def test_python_types_become_json_schemas() -> None:
    assert json_schema_of(str) == {"type": "string"}
    assert json_schema_of(float) == {"type": "number"}
    assert json_schema_of(Any) == {}
    assert json_schema_of(list[str]) == {"type": "array", "items": {"type": "string"}}
    assert json_schema_of(Optional[int])["anyOf"] == [{"type": "integer"}, {"type": "null"}]  # noqa: UP045
    assert json_schema_of(Point)["required"] == ["x"]
    assert json_schema_of(Order)["properties"]["at"]["format"] == "date-time"


def test_a_json_schema_is_taken_as_it_is_in_a_copy() -> None:
    given = {"type": "string", "enum": ["a"]}
    schema = json_schema_of(given)
    assert schema == given
    given["enum"].append("b")  # type: ignore[attr-defined]
    assert schema == {"type": "string", "enum": ["a"]}


@pytest.mark.parametrize(
    "wrong",
    [
        "string",
        None,
        True,
        5,
        [str],
        {"type": "strin"},
        {"type": "string", "pattern": "("},
        {"$ref": "#/$defs/missing"},
        {"$ref": "http://127.0.0.1:1/schema"},
        {"$ref": "file:///etc/hostname"},
        {1: "x"},
        Callable,
        object(),
    ],
)
def test_what_is_no_schema_is_refused(wrong: Any) -> None:
    with pytest.raises(GraphFormatError):
        json_schema_of(wrong)


def test_a_problem_names_path_and_reason_of_the_first_violation() -> None:
    schema = Schema(json_schema_of(dict[str, list[int]]))
    assert schema.problem({"a": [1, 2]}) is None
    assert schema.problem({"b": [1, "x"], "a": ["y"]}) == '$.a[0]: "y" is not of type "integer"'


def test_a_problem_does_not_depend_on_the_order_of_the_schemas_keys() -> None:
    properties = {"a": {"type": "string"}, "b": {"type": "string"}}
    one = Schema({"type": "object", "properties": properties, "required": ["c"]})
    other = Schema({"required": ["c"], "properties": dict(reversed(properties.items())), "type": "object"})
    assert one.problem({"a": 1, "b": 2}) == other.problem({"b": 2, "a": 1}) is not None


def test_a_problems_text_is_bounded() -> None:
    problem = Schema({"type": "integer"}).problem("x" * 1_000_000)
    assert problem is not None
    assert len(problem) < LONGEST_MESSAGE + 10


def test_numbers_of_any_size_fit() -> None:
    assert Schema({"type": "number"}).problem(10**400) is None
    assert Schema({"type": "integer"}).problem(-(2**70)) is None
    assert Schema({"type": "integer", "maximum": 5}).problem(2**64) is not None
    assert Schema({"type": "number"}).problem(True) is not None


def test_strings_that_utf8_cannot_hold_are_checked_all_the_same() -> None:
    assert Schema({"type": "string", "maxLength": 1}).problem("\ud800") is None
    assert Schema({"type": "array", "items": {"maxLength": 1}}).problem(["\ud800x"]) is not None
    assert Schema({"type": "integer"}).problem("\ud800") is not None
    assert Schema({}).problem({"\ud800": "\x00"}) is None


def test_formats_are_checked_and_a_time_of_day_needs_no_offset() -> None:
    assert Schema(json_schema_of(datetime)).problem("tomorrow") is not None
    assert Schema(json_schema_of(datetime)).problem(datetime(2024, 2, 29, tzinfo=UTC).isoformat()) is None
    assert Schema(json_schema_of(time)).problem("12:30:00") is None
    assert Schema(json_schema_of(time)).problem("noon") is not None


@pytest.mark.parametrize(
    "annotation",
    [
        str,
        int,
        float,
        bool,
        dict,
        list,
        None,
        Any,
        object,
        list[str],
        dict[str, list[int]],
        str | None,
        Optional[float],  # noqa: UP045
        Literal["a", 1],
        Mapping[str, Any],
        Sequence[int],
        OrderId,
        "Unresolvable",
    ],
)
def test_values_that_are_their_own_json_form_need_no_reviver(annotation: Any) -> None:
    assert reviver(annotation) is None


@pytest.mark.parametrize(
    ("annotation", "stored", "value"),
    [
        (datetime, "2024-02-29T12:00:00+00:00", datetime(2024, 2, 29, 12, tzinfo=UTC)),
        (date, "2024-02-29", date(2024, 2, 29)),
        (time, "12:30:00", time(12, 30)),
        (UUID, "00000000-0000-0000-0000-000000000001", UUID(int=1)),
        (Decimal, "1.10", Decimal("1.10")),
        (Decimal | None, None, None),
        (Colour, "red", Colour.RED),
        (Point, {"x": 1}, Point(x=1)),
        (Order, {"at": "2024-02-29T12:00:00Z"}, Order(at=datetime(2024, 2, 29, 12, tzinfo=UTC))),
        (list[Point], [{"x": 1}], [Point(x=1)]),
        (tuple[int, str], [1, "a"], (1, "a")),
    ],
)
def test_typed_values_are_rebuilt_from_their_json_form(annotation: Any, stored: Any, value: Any) -> None:
    revive = reviver(annotation)
    assert revive is not None
    assert revive(stored) == value


def test_a_type_that_pydantic_does_not_know_is_left_alone() -> None:
    class Foreign: ...

    assert reviver(Foreign) is None
