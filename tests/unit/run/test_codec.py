"""The wire forms of runs and events: stable to the byte, and refused unless understood to the last key."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.graphs import unhurried

from docket_celery.errors import CorruptRecord
from docket_celery.run.codec import (
    decode_event_data,
    decode_instant,
    decode_state,
    decode_value,
    encode_event_data,
    encode_instant,
    encode_state,
)
from docket_celery.run.document import Failure, OpenInterrupt, Run, RunStatus, Task

GOLDEN = Path(__file__).with_name("golden")
AT = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)

FULL = Run(
    id="run-1",
    graph_id="order",
    graph_hash="a1",
    status=RunStatus.RUNNING,
    step=3,
    checkpoint_seq=7,
    event_seq=20,
    fields={"total": 1},
    tasks=(
        Task(node="price", step=3),
        Task(node="ask", step=3, state="interrupted", answers={"first": [1, None, "a\x00b"]}, asked=2),
        Task(node="retry", step=3, state="retrying", attempt=2, due_at=AT),
        Task(node="nap", step=3, state="sleeping", due_at=AT, writes={}),
        Task(node="ready", step=3, state="finished", writes={"total": 10**30, "name": "\ud800"}),
    ),
    interrupts=(
        OpenInterrupt(
            id="ask@3#2",
            node="ask",
            step=3,
            field="second",
            schema={"type": "boolean"},
            payload={"b": 1, "a": 2},
            deadline=AT,
            default=False,
            opened_at=AT,
        ),
        OpenInterrupt(id="ask@3#1", node="ask", step=3, field="first", schema={}),
    ),
    arrived={"[a, b] -> c": ("a", "b"), "[d] -> e": ()},
    answered=("ask@1#1",),
    outputs=("total",),
    failure=Failure(
        code="timeout", message="too slow", node="price", error_type="TimeoutError", details={"limit": 2.5}
    ),
    started_at=AT,
    updated_at=AT,
)
EMPTY = Run(
    id="run-1",
    graph_id="order",
    graph_hash="a1",
    status=RunStatus.DONE,
    step=1,
    checkpoint_seq=1,
    event_seq=1,
    fields={},
    started_at=AT,
    updated_at=AT,
)


@pytest.mark.parametrize(("name", "run"), [("run_v1_full.json", FULL), ("run_v1_empty.json", EMPTY)])
def test_a_run_is_written_as_the_golden_file_says_and_read_back(name: str, run: Run) -> None:
    golden = (GOLDEN / name).read_text(encoding="ascii").rstrip("\n")
    assert encode_state(run) == golden
    state = decode_state(golden)
    for part in ("tasks", "interrupts", "arrived", "answered", "outputs", "failure"):
        assert getattr(state, part) == getattr(run, part)


def test_event_data_is_written_as_the_golden_file_says_and_read_back() -> None:
    data = {"attempt": 2, "reason": "a\x00b\ud800", "nested": {"z": [1.5, None, True], "a": {}}}
    golden = (GOLDEN / "event_v1.json").read_text(encoding="ascii").rstrip("\n")
    assert encode_event_data(data) == golden
    assert decode_event_data(golden) == data


def _without(document: Any, *path: str | int) -> str:
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return json.dumps(document)


def _with(document: Any, value: Any, *path: str | int) -> str:
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return json.dumps(document)


def _document() -> Any:
    return json.loads(encode_state(FULL))


REFUSED = {
    "malformed text": ("{", "cannot be read"),
    "a number JSON does not have": ('{"v":1,"answered":[NaN]}', "cannot be read"),
    "no object": ("[1]", "should be an object"),
    "no version": (_without(_document(), "v"), "lacks 'v'"),
    "a later version": (_with(_document(), 2, "v"), "version 2; this release knows version 1"),
    "a version that is no number": (_with(_document(), True, "v"), "wrong type"),
    "an unknown key": (_with(_document(), 1, "colour"), "unknown to this release: colour"),
    "an unknown key of a task": (_with(_document(), 1, "tasks", 0, "colour"), r"tasks\[0\] has keys unknown"),
    "an unknown key of an interrupt": (_with(_document(), 1, "interrupts", 1, "colour"), r"interrupts\[1\] has keys"),
    "an unknown key of the failure": (_with(_document(), 1, "failure", "colour"), "failure has keys unknown"),
    "an unknown task state": (_with(_document(), "paused", "tasks", 0, "state"), "unknown state 'paused'"),
    "a task without a node": (_without(_document(), "tasks", 0, "node"), "lacks 'node'"),
    "a step that is no number": (_with(_document(), True, "tasks", 0, "step"), "'step'"),
    "a deadline without its default": (_without(_document(), "interrupts", 0, "default"), "lacks 'default'"),
    "a default without a deadline": (_with(_document(), 1, "interrupts", 1, "default"), "unknown to this release"),
    "a naive instant": (_with(_document(), "2026-01-02T03:04:05", "tasks", 2, "due_at"), "not an instant in UTC"),
    "an instant that is none": (_with(_document(), "soon", "tasks", 2, "due_at"), "not an instant"),
    "answered ids that are no strings": (_with(_document(), [1], "answered"), "list of strings"),
    "nesting without end": ("[" * 100_000, "cannot be read"),
}


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_not_understood_to_the_last_key_is_corrupt(text: str, message: str) -> None:
    with pytest.raises(CorruptRecord, match=message):
        decode_state(text)


def test_event_data_of_another_version_is_corrupt() -> None:
    with pytest.raises(CorruptRecord, match="version 9"):
        decode_event_data('{"v":9,"data":{}}')


def test_a_value_that_is_no_json_is_corrupt() -> None:
    with pytest.raises(CorruptRecord):
        decode_value("{")


def test_a_naive_instant_is_never_written() -> None:
    with pytest.raises(ValueError, match="time zone"):
        encode_instant(AT.replace(tzinfo=None))


_ZONES = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@unhurried
@given(st.datetimes(datetime(2, 1, 1), datetime(9998, 12, 31), timezones=_ZONES))
def test_an_instant_comes_back_exactly_in_utc(instant: datetime) -> None:
    read = decode_instant(encode_instant(instant))
    assert read == instant
    assert read.tzinfo is UTC
