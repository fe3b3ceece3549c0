"""Whatever a node raises becomes bounded, readable text."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest

from docket_celery import START, Graph
from docket_celery.run.document import RunStatus
from docket_celery.runtime.failures import failure_of, printable
from docket_celery.testing import run_inline


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

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


HARD = {
    "self": caused_by_itself,
    "circle": caused_in_a_circle,
    "thousands": caused_by_thousands,
    "unprintable": Unprintable,
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


def test_the_nearest_causes_are_kept() -> None:
    try:
        try:
            raise OSError("disk")
        except OSError as error:
            raise ValueError("cannot read") from error
    except ValueError as error:
        failure = failure_of(error, code="node_error", node="a")
    assert failure.details["causes"] == [{"type": "builtins.OSError", "message": "disk"}]


def test_text_that_cannot_be_stored_is_shown_escaped() -> None:
    assert printable("a\x00b\ud800") == "a\\x00b\\ud800"
