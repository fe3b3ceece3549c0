"""What a state value may be, and its committed form."""

from __future__ import annotations

import dataclasses
import enum
import math
import uuid
from collections import OrderedDict, UserDict, namedtuple
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from support.graphs import json_values, unhurried

from docket_celery.errors import ValueRefused
from docket_celery.run.values import MAX_DEPTH, decode, encode, encoded_size, fresh, normalise


class Colour(enum.Enum):
    RED = "red"
    PAIR = (1, 2)


class Level(enum.IntEnum):
    HIGH = 3


class Name(str):
    def __str__(self) -> str:
        return "overridden"


class Count(int):
    pass


class Ratio(float):
    pass


@dataclasses.dataclass
class Point:
    x: int
    at: datetime | None = None


class Order(BaseModel):
    id: uuid.UUID
    point: Point
    total: Decimal = Field(alias="amount")


Pair = namedtuple("Pair", "a b")


def kept(value: Any, max_bytes: int | None = None) -> Any:
    return normalise(value, "$.field", max_bytes=max_bytes)


def refusal(value: Any, max_bytes: int | None = None) -> ValueRefused:
    with pytest.raises(ValueRefused) as raised:
        kept(value, max_bytes)
    return raised.value


def same(one: Any, other: Any) -> bool:
    """Equal in value and type, all the way down, order of keys included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(map(same, one.values(), other.values()))
    return bool(one == other)


@unhurried
@given(json_values)
def test_any_json_value_is_kept_exactly_and_read_back_equal_in_value_and_type(value: Any) -> None:
    normal = kept(value)
    assert same(normal, value)
    assert same(decode(encode(normal)), normal)
    assert same(fresh(normal), normal)
    assert encoded_size(normal) == len(encode(normal).encode("utf-8"))


@unhurried
@given(st.text(st.characters(categories=["Cs", "Cc", "Ll"]), max_size=8))
def test_any_string_is_kept_exactly_or_refused(text: str) -> None:
    try:
        normal = kept(text)
    except ValueRefused:
        assert any("\ud800" <= high <= "\udbff" and "\udc00" <= low <= "\udfff" for high, low in pairwise(text))
    else:
        assert decode(encode(normal)) == text


@pytest.mark.parametrize(
    ("value", "form"),
    [
        ((1, (2,)), [1, [2]]),
        (Pair(1, 2), [1, 2]),
        (Name("x"), "x"),
        (Count(5), 5),
        (Ratio(1.5), 1.5),
        (Colour.RED, "red"),
        (Colour.PAIR, [1, 2]),
        (Level.HIGH, 3),
        ({Name("k"): 1}, {"k": 1}),
        (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (UserDict({"k": (1,)}), {"k": [1]}),
        (datetime(2024, 2, 29, 12, 0, 0, 5, tzinfo=UTC), "2024-02-29T12:00:00.000005+00:00"),
        (datetime(2024, 2, 29, 12, tzinfo=timezone(timedelta(hours=-5, minutes=-30))), "2024-02-29T12:00:00-05:30"),
        (datetime(1900, 1, 1, tzinfo=ZoneInfo("Europe/Amsterdam")), None),
        (date(2024, 2, 29), "2024-02-29"),
        (time(12, 30), "12:30:00"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Decimal("1.10"), "1.10"),
        (Point(x=1, at=datetime(2024, 1, 1, tzinfo=UTC)), {"x": 1, "at": "2024-01-01T00:00:00+00:00"}),
        (
            Order(id=uuid.UUID(int=2), point=Point(x=1), amount=Decimal("1.10")),
            {"id": "00000000-0000-0000-0000-000000000002", "point": {"x": 1, "at": None}, "amount": "1.10"},
        ),
        (2**64, 2**64),
        (-(10**4_299), -(10**4_299)),
        ("a\x00b", "a\x00b"),
        ("\ud800", "\ud800"),
        ("\udcff\ud800", "\udcff\ud800"),
        ("\U0001f600", "\U0001f600"),
        ({"": {"\x00": -0.0}}, {"": {"\x00": -0.0}}),
    ],
)
def test_each_admitted_type_has_one_stated_form(value: Any, form: Any) -> None:
    normal = kept(value)
    if form is not None:
        assert same(normal, form)
    assert same(decode(encode(normal)), normal)


def test_an_offset_with_seconds_becomes_universal_time() -> None:
    historical = datetime(1900, 1, 1, tzinfo=ZoneInfo("Europe/Amsterdam"))
    assert datetime.fromisoformat(kept(historical)) == historical
    assert kept(historical).endswith("+00:00")


@pytest.mark.parametrize(
    ("value", "path", "reason"),
    [
        (math.nan, "$.field", "nan"),
        ([1, {"k": -math.inf}], "$.field[1].k", "-inf"),
        (datetime(2024, 1, 1), "$.field", "naive"),
        ({"a b": [b"x"]}, '$.field["a b"][0]', "bytes"),
        (bytearray(b"x"), "$.field", "bytearray"),
        ({"s": {1}}, "$.field.s", "set"),
        (frozenset(), "$.field", "frozenset"),
        ({1: "int", "1": "str"}, "$.field", "keys must be strings, got 1"),
        ({True: 1}, "$.field", "keys must be strings"),
        ({None: 1}, "$.field", "keys must be strings"),
        ((number for number in [1]), "$.field", "generator"),
        (timedelta(1), "$.field", "timedelta"),
        (Fraction(1, 2), "$.field", "Fraction"),
        (1j, "$.field", "complex"),
        (Decimal("NaN"), "$.field", "not a number"),
        (object(), "$.field", "object"),
        (Point, "$.field", "type"),
        (len, "$.field", "builtin_function_or_method"),
        pytest.param(10**4_300, "$.field", "4,300 digits", id="an integer of 4,301 digits"),
        pytest.param(10**5_000, "$.field", "4,300 digits", id="an integer of 5,001 digits"),
        (["\ud83d\ude00"], "$.field[0]", "surrogates"),
        ({"\ud83d\ude00": 1}, "$.field", "surrogates"),
        (Point(x=datetime(2024, 1, 1)), "$.field.x", "naive"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_kept_is_refused_with_its_path(value: Any, path: str, reason: str) -> None:
    refused = refusal(value)
    assert refused.path == path
    assert reason in refused.reason
    assert refused.code == "value_refused"


def test_an_open_file_is_refused() -> None:
    with open(__file__) as file:
        assert "TextIOWrapper" in refusal({"f": file}).reason


def nested(depth: int, kind: type) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if kind is list else {"k": value}
    return value


@pytest.mark.parametrize("kind", [list, dict])
def test_nesting_is_bounded_alike_for_writing_and_reading(kind: type) -> None:
    deepest = nested(MAX_DEPTH, kind)
    assert same(decode(encode(kept(deepest))), deepest)
    for depth in (MAX_DEPTH + 1, 1_000, 10_000):
        assert "deeper than 200" in refusal(nested(depth, kind)).reason


def test_a_value_that_contains_itself_is_refused() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    assert "deeper than 200" in refusal(cycle).reason
    point = Point(x=1)
    point.x = point  # type: ignore[assignment]
    assert "deeper than 200" in refusal(point).reason


def test_a_small_value_that_unfolds_to_an_enormous_one_is_refused_early() -> None:
    bomb: list[Any] = []
    for _ in range(60):
        bomb = [bomb, bomb]
    assert refusal(bomb, max_bytes=100_000).code == "payload_too_large"


@pytest.mark.parametrize("value", ["x" * 98, [10**9, 1.5] * 6 + ["\x00" * 2], {"k": "é" * 15}])
def test_size_is_that_of_the_compact_json_form(value: Any) -> None:
    size = len(encode(value))
    assert kept(value, max_bytes=size) == value
    refused = refusal(value, max_bytes=size - 1)
    assert refused.code == "payload_too_large"
    assert (str(size) in refused.reason, str(size - 1) in refused.reason) == (True, True)


def test_a_refusal_stays_short_however_large_the_value() -> None:
    assert len(str(refusal({"k" * 1_000_000: {1: 2}}))) < 1_000


def test_the_form_shares_nothing_with_what_was_given() -> None:
    given_value = {"a": [1], "b": {"c": []}}
    normal = kept(given_value)
    given_value["a"].append(2)  # type: ignore[attr-defined]
    given_value["b"]["c"].append(3)  # type: ignore[index]
    assert normal == {"a": [1], "b": {"c": []}}
    copy = fresh(normal)
    copy["a"].append(2)
    assert normal["a"] == [1]


def test_a_foreign_object_that_cannot_be_read_is_a_refusal() -> None:
    class Broken(UserDict):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            raise RuntimeError("gone")

    assert "RuntimeError: gone" in refusal({"k": Broken(a=1)}).reason
    assert refusal({"k": Broken(a=1)}).path == "$.field.k"
    assert "cannot be shown" in refusal({"k": {BrokenKey(): 1}}).reason


class BrokenKey:
    def __repr__(self) -> str:
        raise RuntimeError("gone")


class BrokenList(list):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        raise RuntimeError("gone")


class BrokenZone(tzinfo):
    def utcoffset(self, at: datetime | None) -> Any:
        raise RuntimeError("gone")


class BrokenDecimal(Decimal):
    def __str__(self) -> str:
        raise RuntimeError("gone")


class BrokenEnum(enum.Enum):
    ONE = 1

    @property
    def value(self) -> Any:
        raise RuntimeError("gone")


@pytest.mark.parametrize(
    "broken",
    [
        BrokenList([1]),
        datetime(2024, 1, 1, tzinfo=BrokenZone()),
        time(12, tzinfo=BrokenZone()),
        BrokenDecimal("1.1"),
        BrokenEnum.ONE,
    ],
    ids=lambda broken: type(broken).__name__,
)
def test_so_is_a_value_of_whatever_kind_whose_own_code_raises(broken: Any) -> None:
    refused = refusal({"k": [broken]})
    assert (refused.path, refused.reason) == ("$.field.k[0]", "cannot be read: RuntimeError: gone")


def test_keys_that_would_become_one_are_refused() -> None:
    class Odd(str):
        def __eq__(self, other: object) -> bool:
            return self is other

        def __hash__(self) -> int:
            return id(self)

    assert "two keys" in refusal({Odd("k"): 1, Odd("k"): 2}).reason


def test_text_that_is_not_json_is_not_decoded() -> None:
    for text in ("NaN", "-Infinity", "{", ""):
        with pytest.raises(ValueError):  # noqa: PT011
            decode(text)
    with pytest.raises(ValueError):  # noqa: PT011
        encode(math.nan)
