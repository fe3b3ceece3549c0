"""A crash around every commit: sound graphs come to the same, and what is not sound is named."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from docket_celery import FINISH, START, Graph, Interrupt, NodeContext, Retry, RunStatus, Sleep
from docket_celery.testing import CrashChangedOutcome, run_inline, run_with_crashes


def fetch(ctx: NodeContext) -> dict[str, Any]:
    if ctx.attempt == 1:
        raise OSError("not yet")
    return {"log": "fetched"}


def ask(approved: bool | None = None) -> Any:
    return Interrupt("approved") if approved is None else {"log": f"answer {approved}"}


def hurry(urgent: bool | None = None) -> Any:
    return Interrupt("urgent", timeout=30, default=False) if urgent is None else {"log": f"urgent {urgent}"}


def sound() -> Graph:
    return (
        Graph("sound")
        .field("approved", bool)
        .field("urgent", bool)
        .field("log", list[str], reducer="append")
        .node("fetch", fetch, retry=Retry(max_attempts=3, backoff=10.0))
        .node("ask", ask)
        .node("hurry", hurry)
        .node("rest", lambda: Sleep(60, writes={"log": "rested"}))
        .node("join", lambda: {"log": "joined"})
        .edge(START, "fetch")
        .edge(START, "ask")
        .edge("fetch", "rest")
        .edge("fetch", "hurry")
        .edge(["ask", "rest", "hurry"], "join")
        .edge("join", FINISH)
    )


def test_a_sound_graph_comes_to_the_same_and_its_undisturbed_run_is_returned() -> None:
    result = run_with_crashes(sound(), resolve={"approved": True})
    assert result.status is RunStatus.DONE
    assert result.fields["log"] == ["answer True", "fetched", "urgent False", "rested", "joined"]
    assert result == run_inline(sound(), resolve={"approved": True})


def test_every_node_is_called_again_for_each_crash() -> None:
    calls = itertools.count()

    def node() -> None:
        next(calls)

    graph = Graph("g").node("a", node).node("b", node).edge(START, "a").edge("a", "b")
    commits = len(run_with_crashes(graph).history) - 1
    # Undisturbed; and for each commit a run with a crash before it, where one node is called twice, and one after it.
    assert next(calls) == 2 + commits * (3 + 2)


def test_a_node_that_keeps_something_in_memory_is_found_by_its_field() -> None:
    numbers = itertools.count()
    graph = Graph("g").field("n", int).node("a", lambda: {"n": next(numbers)}).edge(START, "a").edge("a", FINISH)
    with pytest.raises(CrashChangedOutcome, match=r"crash before commit 2 \(superstep 1: a\): field 'n' became 2 inst"):
        run_with_crashes(graph)


def test_a_node_that_fails_only_the_first_time_is_found_by_the_failure() -> None:
    called: list[str] = []

    def once() -> None:
        called.append("called")
        if len(called) == 1:
            raise ValueError("first")

    graph = Graph("g").node("a", once).edge(START, "a")
    with pytest.raises(CrashChangedOutcome, match="status became 'done' instead of 'failed'"):
        run_with_crashes(graph)


def test_writes_that_differ_only_in_kind_are_found() -> None:
    values = iter([1, 1.0, 1.0])
    graph = Graph("g").field("n", float).node("a", lambda: {"n": next(values)}).edge(START, "a")
    with pytest.raises(CrashChangedOutcome, match=r"became 1\.0 instead of 1"):
        run_with_crashes(graph)


def test_a_write_made_only_sometimes_is_found() -> None:
    turns = itertools.count()

    def sometimes() -> dict[str, int]:
        return {} if next(turns) else {"n": 1}

    graph = Graph("g").field("n", int).node("a", sometimes).edge(START, "a")
    with pytest.raises(CrashChangedOutcome, match="field 'n' became 'no value' instead of 1"):
        run_with_crashes(graph)
