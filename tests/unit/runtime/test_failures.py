"""Whatever a node raises becomes bounded, readable text."""

from __future__ import annotations

import asyncio
import json
import math
from collections import UserDict
from typing import Any

import pytest
from msgspec.structs import asdict

from docket_celery import START, Graph, Interrupt, NodeContext, PermanentFailure, Retry, Sleep
from docket_celery.run.document import RunStatus
from docket_celery.runtime.failures import failure_of, printable
from docket_celery.testing import run_inline


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class EndsTheProcess(Exception):
    """As with a message that is made by code which looks something up, and gives up."""

    def __str__(self) -> str:
        raise SystemExit(2)

    __repr__ = __str__


class InterruptsTheProcess(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt

    __repr__ = __str__


class NeedsKeyword(Exception):
    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")


def caused_by_itself() -> Exception:
    error = ValueError("me")
    error.__cause__ = error
    return error


def caused_in_a_circle() -> Exception:
    errors = [ValueError(str(number)) for number in range(3)]
    for error, cause in zip(errors, [*errors[1:], errors[0]], strict=True):
        error.__cause__ = cause
    return errors[0]


def caused_by_thousands() -> Exception:
    error = ValueError("last")
    for number in range(5_000):
        following = ValueError(str(number))
        following.__cause__ = error
        error = following
    return error


class NeitherTrueNorFalse(Exception):
    def __bool__(self) -> bool:
        raise RuntimeError("no answer")


def caused_by_what_is_neither_true_nor_false() -> Exception:
    error = ValueError("outer")
    error.__cause__ = NeitherTrueNorFalse("inner")
    return error


class HasNoParts(Exception):
    """As a proxy that has lost what it stands for."""

    @property
    def __class__(self) -> Any:
        raise RuntimeError("no class")

    @property
    def __cause__(self) -> Any:
        raise RuntimeError("no cause")


class HasNoMembers(ExceptionGroup):
    @property
    def exceptions(self) -> Any:
        raise RuntimeError("no members")


def shared_over_and_over() -> BaseException:
    error: Exception = ValueError("one")
    for _ in range(60):
        error = ExceptionGroup("twice", [error, error])
    return error


HARD = {
    "a group of two to the sixtieth": shared_over_and_over,
    "self": caused_by_itself,
    "circle": caused_in_a_circle,
    "thousands": caused_by_thousands,
    "unprintable": Unprintable,
    "an exit for a message": EndsTheProcess,
    "an interrupt for a message": InterruptsTheProcess,
    "an exit within a group": lambda: ExceptionGroup("many", [EndsTheProcess()]),
    "cause without a truth": caused_by_what_is_neither_true_nor_false,
    "no parts": HasNoParts,
    "a group without members": lambda: HasNoMembers("many", [ValueError("one")]),
    "keyword": lambda: NeedsKeyword(code=3),
    "huge": lambda: ValueError("x" * 10_000_000),
    "odd text": lambda: ValueError("a\x00b \ud800"),
    "group": lambda: ExceptionGroup("many", [ValueError(str(number)) for number in range(1_000)]),
    "system exit": lambda: SystemExit(0),
    "memory": MemoryError,
}


@pytest.mark.parametrize("make", HARD.values(), ids=HARD.keys())
def test_any_exception_becomes_a_bounded_failure_that_names_node_and_type(make: Any) -> None:
    def node() -> None:
        raise make()

    result = run_inline(Graph("g").node("a", node).edge(START, "a"))
    assert result.status is RunStatus.FAILED
    failure = result.run.failure
    assert failure is not None
    assert failure.node == "a"
    assert failure.error_type
    assert failure.message
    assert len(json.dumps(asdict(failure))) < 64 * 1024
    json.dumps(asdict(failure)).encode("utf-8")


class Closed(UserDict):  # type: ignore[type-arg]
    """As a shelf or a row whose file or session is closed."""

    def __iter__(self) -> Any:
        raise ValueError("it is closed")


class NoRepr:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


def asking(**attributes: Any) -> Interrupt:
    asked = Interrupt("x")
    for name, value in attributes.items():
        setattr(asked, name, value)
    return asked


UNREADABLE = {
    "mapping": lambda: Closed(x=1),
    "name of a field": lambda: {NoRepr(): 1},
    "writes of a sleep": lambda: Sleep(1, writes=Closed(x=1)),
    "field of a question": lambda: asking(field=[]),
    "deadline of a question": lambda: asking(timeout=math.nan, default=1),
}


@pytest.mark.parametrize("make", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_what_a_node_returned_and_nobody_can_read_is_its_failure(make: Any) -> None:
    result = run_inline(Graph("g").field("x").node("a", make).edge(START, "a"))
    failure = result.run.failure
    assert failure is not None
    assert (failure.code, failure.node) == ("bad_return", "a")
    assert "cannot be read" in failure.message


ENDLESS = "k\x00" * 1_000_000
LONG_WINDED = {
    "name of a field": lambda: {ENDLESS: 1},
    "path of a violation": lambda: {"x": {ENDLESS: "no number"}},
    "field of a question": lambda: Interrupt(ENDLESS),
}


@pytest.mark.parametrize("make", LONG_WINDED.values(), ids=LONG_WINDED.keys())
def test_a_failure_quotes_what_a_node_returned_but_never_at_length(make: Any) -> None:
    graph = Graph("g").field("x", dict[str, int]).node("a", make).edge(START, "a")
    result = run_inline(graph)
    assert result.run.failure is not None
    for text in (result.run.failure.message, *(str(dict(event.data)) for event in result.events)):
        assert len(text) < 8_000
        assert "\x00" not in text


def test_the_nearest_causes_are_kept() -> None:
    try:
        try:
            raise OSError("disk")
        except OSError as error:
            raise ValueError("cannot read") from error
    except ValueError as error:
        failure = failure_of(error, code="node_error", node="a")
    assert failure.details["causes"] == [{"type": "builtins.OSError", "message": "disk"}]


def test_the_members_of_a_group_are_its_nearest_causes() -> None:
    members = [ValueError("first"), ExceptionGroup("inner", [KeyError("second")])]
    error = ExceptionGroup("outer", members)
    error.__cause__ = OSError("disk")
    causes = failure_of(error, code="node_error", node="a").details["causes"]
    assert [cause["message"] for cause in causes] == ["first", "inner (1 sub-exception)", "disk", "'second'"]


def test_a_permanent_failure_is_one_within_a_group_of_its_siblings_too() -> None:
    calls: list[int] = []

    async def fails(error: Exception) -> None:
        raise error

    async def node(ctx: NodeContext) -> None:
        calls.append(ctx.attempt)
        async with asyncio.TaskGroup() as outer:
            outer.create_task(fails(OSError("passing")))
            if ctx.attempt == 2:
                inner = ExceptionGroup("inner", [PermanentFailure("the card is stolen")])
                outer.create_task(fails(inner))

    retry = Retry(max_attempts=5, backoff=0.0)
    result = run_inline(Graph("g").node("a", node, retry=retry).edge(START, "a"))
    assert calls == [1, 2]
    assert result.run.failure is not None
    assert "the card is stolen" in str(result.run.failure.details["causes"])


def test_text_that_cannot_be_stored_is_shown_escaped() -> None:
    assert printable("a\x00b\ud800") == "a\\x00b\\ud800"
