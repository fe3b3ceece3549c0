"""A vehicle that goes on with the run in its hands and one that reloads it at each step see the same state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from fractions import Fraction
from typing import Any
from uuid import UUID

import pytest
from support.rig import Rig

from docket_celery import FINISH, START, Graph, NodeContext, Retry
from docket_celery.run.document import Run, RunStatus


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Text(str):
    """A subclass of str."""


@dataclass
class Point:
    x: int
    y: float


KEPT: dict[str, Any] = {
    "none": None,
    "int": 1,
    "float-that-is-whole": 1.0,
    "true": True,
    "large": 2**70,
    "text": "a\u00e9\U0001f600",
    "nul": "a\x00b",
    "lone-surrogate": "x\ud800",
    "uuid": UUID(int=7),
    "decimal": Decimal("1.10"),
    "datetime": datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=timezone(timedelta(hours=5, minutes=30))),
    "date": date(2024, 2, 29),
    "time": time(12, 30),
    "tuple": (1, (2, 3)),
    "key-order": {"b": 1, "a": 2, "aa": 0},
    "enum": Colour.RED,
    "int-enum": Level.HIGH,
    "subclass": Text("t"),
    "dataclass": Point(1, 2.0),
    "nested": {"list": [{"deep": [None, 0, -0.0]}]},
}

REFUSED: dict[str, Any] = {
    "timedelta": timedelta(1),
    "bytes": b"x",
    "bytearray": bytearray(b"x"),
    "set": {1},
    "frozenset": frozenset({1}),
    "int-and-text-key": {1: "int", "1": "text"},
    "bool-key": {True: 1},
    "none-key": {None: 1},
    "nan": float("nan"),
    "infinity": float("inf"),
    "naive": datetime(2024, 2, 29),
    "complex": 1j,
    "fraction": Fraction(1, 3),
    "split-character": "\ud83d\ude00",
    "generator": (number for number in range(3)),
    "object": object(),
}


def tour(value: Any) -> Graph:
    """Writes the value under a nested place, and then logs, twice, what is seen of it."""

    def write(ctx: NodeContext) -> dict[str, Any]:
        return {"value": [0, 0, {"k": value}]}

    def see(value: Any) -> dict[str, Any]:
        return {"log": [repr(value)]}

    def see_again(value: Any) -> dict[str, Any]:
        return {"log": [repr(value)]}

    graph = Graph("tour").field("value", list[Any]).field("log", list[str], reducer="append")
    return (
        graph.node("write", write, retry=Retry(max_attempts=5))
        .node("see", see)
        .node("see_again", see_again)
        .edge(START, "write")
        .edge("write", "see")
        .edge("see", "see_again")
        .edge("see_again", FINISH)
    )


def driven(graph: Graph, moments: int, *, leaves: bool = False) -> Run:
    rig = Rig(drain_max_moments=moments, leaves=leaves)
    rig.start(graph)
    while rig.run().status is RunStatus.RUNNING:
        rig.drain()
    return rig.run()


@pytest.mark.parametrize("value", KEPT.values(), ids=KEPT)
def test_a_value_reads_the_same_in_a_long_drain_and_after_every_reload(value: Any) -> None:
    live = driven(tour(value), 100)
    assert live.status is RunStatus.DONE
    for leaves in (False, True):
        reloaded = driven(tour(value), 1, leaves=leaves)
        assert live.fields["log"] == reloaded.fields["log"]
        assert repr(live.fields) == repr(reloaded.fields)
    first, second = live.fields["log"]
    assert first == second


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED)
def test_a_value_that_cannot_be_kept_is_refused_once_with_its_path(value: Any) -> None:
    for moments in (100, 1):
        rig = Rig(drain_max_moments=moments)
        rig.start(tour(value))
        rig.drain()
        run = rig.run()
        assert run.status is RunStatus.FAILED
        assert run.failure is not None
        assert (run.failure.code, run.failure.node) == ("value_refused", "write")
        assert run.failure.details["path"].startswith("$.value[2].k")
        assert run.failure.message.startswith("$.value[2].k")
        assert [event.data.get("attempt") for event in rig.events() if event.node == "write"][:1] == [1]


@pytest.mark.parametrize("moments", [1, 100])
def test_what_a_node_does_to_its_arguments_or_to_what_it_returned_reaches_nobody(moments: int) -> None:
    returned: dict[str, Any] = {"kept": ["clean"]}
    seen: list[list[str]] = []

    def first() -> dict[str, Any]:
        return returned

    def dirty(ctx: NodeContext, items: list[str], meta: dict[str, int], kept: list[str]) -> None:
        seen.append(list(items))
        items.append("dirty")
        meta["k"] = 1
        kept.append("dirty")
        returned["kept"].append("dirty")
        if ctx.attempt == 1:
            raise OSError("again")

    def looks(items: list[str], kept: list[str]) -> dict[str, Any]:
        return {"log": [len(items), len(kept)]}

    graph = (
        Graph("dirty")
        .field("items", list[str], default=[])
        .field("meta", dict[str, int], reducer="merge", default={})
        .field("kept", list[str])
        .field("log", list[int], reducer="append")
        .node("first", first)
        .node("dirty", dirty, retry=Retry(max_attempts=2, backoff=0.0))
        .node("looks", looks)
        .edge(START, "first")
        .edge("first", "dirty")
        .edge("first", "looks")
    )
    for _ in range(2):
        returned["kept"] = ["clean"]
        seen.clear()
        run = driven(graph, moments)
        assert run.status is RunStatus.DONE
        assert run.fields == {"items": [], "kept": ["clean"], "log": [0, 1], "meta": {}}
        assert seen == [[], []]


@pytest.mark.parametrize("moments", [1, 100])
def test_a_union_of_objects_goes_by_equality_and_by_first_occurrence(moments: int) -> None:
    def adds() -> dict[str, Any]:
        return {"seen": [{"a": 1}, {"a": 2}]}

    graph = Graph("u").field("seen", list[Any], reducer="union", default=[{"a": 1}])
    graph = graph.node("a", adds).node("b", adds).edge(START, "a").edge("a", "b")
    assert driven(graph, moments).fields["seen"] == [{"a": 1}, {"a": 2}]


def aware() -> Iterator[datetime]:
    yield datetime(2024, 2, 29, tzinfo=UTC)


@pytest.mark.parametrize("moments", [1, 100])
def test_a_typed_parameter_is_rebuilt_from_the_committed_form_at_every_call(moments: int) -> None:
    instant = next(aware())

    def write() -> dict[str, Any]:
        return {"at": instant, "amount": Decimal("1.10")}

    def read(at: datetime, amount: Decimal) -> dict[str, Any]:
        return {"log": [f"{type(at).__name__} {at.isoformat()}", f"{type(amount).__name__} {amount}"]}

    graph = Graph("typed").field("at", datetime).field("amount", Decimal).field("log", list[str], reducer="append")
    graph = graph.node("a", write).node("b", read).node("c", read).edge(START, "a").edge("a", "b").edge("b", "c")
    log = driven(graph, moments).fields["log"]
    assert log == ["datetime 2024-02-29T00:00:00+00:00", "Decimal 1.10"] * 2
