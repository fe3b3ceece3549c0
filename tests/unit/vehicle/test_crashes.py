"""A vehicle may die before or after any of its commits: the run ends as if nothing had happened."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from support.journeys import Legacy, driven, inline, killed

from docket_celery import FINISH, START, Graph, Interrupt, NodeContext, Retry, Sleep
from docket_celery.errors import InvalidGraph
from docket_celery.graph.elements import FieldInput
from docket_celery.run.document import RunStatus
from docket_celery.testing import run_with_crashes


def logs(ctx: NodeContext) -> dict[str, str]:
    return {"log": f"{ctx.node}@{ctx.step}"}


def fails_once(ctx: NodeContext) -> dict[str, str]:
    if ctx.attempt == 1:
        raise OSError("not yet")
    return logs(ctx)


def asks(ctx: NodeContext, answer: str | None = None) -> Any:
    return Interrupt("answer") if answer is None else {"log": f"{ctx.node}: {answer}"}


def sleeps(ctx: NodeContext) -> Sleep:
    return Sleep(30, writes=logs(ctx))


def counts(n: int) -> dict[str, Any]:
    return {"n": n + 1, "log": f"n={n}"}


def empty(name: str, **options: Any) -> Graph:
    return Graph(name, **options).field("log", list[str], reducer="append").output("log")


def fan_out() -> Graph:
    graph = empty("fan_out").node("a", logs).edge(START, "a")
    for name in ("b", "c", "d"):
        graph = graph.node(name, logs).edge("a", name).edge(name, FINISH)
    return graph


def barrier() -> Graph:
    graph = empty("barrier").node("a", logs).node("long", logs).node("b", logs).node("join", logs)
    return graph.edge(START, "a").edge(START, "long").edge("long", "b").edge(["a", "b"], "join").edge("join", FINISH)


def loop() -> Graph:
    graph = empty("loop", max_supersteps=20).field("n", int, default=0).node("count", counts).edge(START, "count")
    return graph.edge("count", "count", when="n < 5").edge("count", FINISH, when="n >= 5")


def retry() -> Graph:
    graph = empty("retry").node("ok", logs).node("flaky", fails_once, retry=Retry(max_attempts=3, backoff=5.0))
    return graph.node("join", logs).edge(START, "ok").edge(START, "flaky").edge(["ok", "flaky"], "join")


def interrupt() -> Graph:
    graph = empty("interrupt").field("answer", str).node("ok", logs).node("asks", asks).node("join", logs)
    return graph.edge(START, "ok").edge(START, "asks").edge(["ok", "asks"], "join")


def sleep() -> Graph:
    graph = empty("sleep").node("sleeps", sleeps).node("ok", logs).node("after", logs)
    return graph.edge(START, "sleeps").edge(START, "ok").edge("sleeps", "after")


def broken() -> Graph:
    def breaks() -> None:
        raise ValueError("for good")

    graph = empty("broken").node("ok", logs).node("breaks", breaks, retry=Retry(max_attempts=2, backoff=1.0))
    return graph.edge(START, "ok").edge("ok", "breaks")


ANSWERS = {"answer": "yes"}


@pytest.mark.parametrize(
    "graph", [fan_out, barrier, loop, retry, interrupt, sleep, broken], ids=lambda graph: graph.__name__
)
def test_a_crash_around_any_commit_leaves_no_trace(graph: Any) -> None:
    undisturbed, commits = driven(graph(), {}, ANSWERS)
    assert undisturbed == inline(graph(), {}, ANSWERS)
    assert undisturbed.status is (RunStatus.FAILED if graph is broken else RunStatus.DONE)
    for number in range(1, commits + 1):
        for applied in (False, True):

            def kill(commit: int, number: int = number, applied: bool = applied) -> Any:
                return killed(applied=applied) if commit == number else None

            found, _ = driven(graph(), {}, ANSWERS, kill=kill)
            assert found == undisturbed, f"killed {'after' if applied else 'before'} commit {number}"


# -- any small graph, any way of driving it -----------------------------------------------------------------------


def behaviour(kind: str, amount: int) -> Any:
    """A deterministic node: what it does depends only on its attempt and on the answer to its question, if it asks."""

    def node(ctx: NodeContext, total: int, answer: str | None = None) -> Any:
        if answer is None and kind == "asks":
            return Interrupt(f"answer_{ctx.node}", payload={"total": total})
        if answer is None and kind == "asks until":
            return Interrupt(f"answer_{ctx.node}", timeout=9, default="nobody")
        if ctx.attempt <= {"fails once": 1, "fails twice": 2, "fails for good": 9}.get(kind, 0):
            raise OSError(f"attempt {ctx.attempt}")
        writes = {"log": f"{ctx.node}@{ctx.step}: {total} {answer}", "total": amount}
        return Sleep(7, writes=writes) if kind == "sleeps" else writes

    return node


KINDS = ["plain", "plain", "plain", "fails once", "fails twice", "fails for good", "sleeps", "asks", "asks until"]
GIVEN = {f"answer_{name}": f"answer to {name}" for name in "abc"}
"""What somebody answers."""


@st.composite
def small_graphs(draw: st.DrawFn) -> Graph:
    """Up to five nodes: forward edges, perhaps guarded, perhaps barriers, perhaps ways back, also into a barrier."""
    names = "abcde"[: draw(st.integers(1, 5))]
    graph = (
        Graph("drawn", max_supersteps=12)
        .input("by", int)
        .field("total", int, reducer="sum", default=0)
        .field("log", list[str], reducer="append")
        .output("log")
    )
    guards = st.none() | st.sampled_from(["total > 2", "total <= 2", "by > 0", "by / 0 > 1", "answer_a == null"])
    for name in "abcde":
        graph = graph.field(f"answer_{name}", str)
    for index, name in enumerate(names):
        # Only questions that will be answered, or answer themselves: a run that waits for ever has no end to compare.
        kind = draw(st.sampled_from([kind for kind in KINDS if kind != "asks" or name in "abc"]))
        graph = graph.node(
            name,
            behaviour(kind, draw(st.integers(-2, 3))),
            inputs={"total": "total", "answer": FieldInput(field=f"answer_{name}", optional=True)},
            retry=Retry(max_attempts=3, backoff=draw(st.sampled_from([0.0, 4.0]))),
            config={"kind": kind},
        )
        sources = [START, *names[:index]]
        for source in draw(st.sets(st.sampled_from(sources), min_size=1, max_size=2)):
            graph = graph.edge(source, name, when=None if source == START else draw(guards))
    if len(names) > 2:
        for target in draw(st.sets(st.sampled_from(names[2:]), max_size=2)):
            sources = draw(st.sets(st.sampled_from(names[: names.index(target)]), min_size=2, max_size=3).map(sorted))
            graph = graph.edge(sources, target, when=draw(guards))
    if draw(st.booleans()):
        graph = graph.edge(names[-1], names[0], when="total < 6")
    if len(names) > 3 and draw(st.booleans()):
        graph = graph.edge(names[2], names[1], when="total < 4")
    return graph


def has_deadline(graph: Graph) -> bool:
    return any(node.config["kind"] == "asks until" for node in graph.nodes.values())


UNHURRIED = [HealthCheck.too_slow, HealthCheck.filter_too_much]


@settings(deadline=None, max_examples=60, suppress_health_check=UNHURRIED)
@given(graph=small_graphs(), by=st.integers(-1, 2))
def test_a_run_comes_to_the_same_however_it_is_driven(graph: Graph, by: int) -> None:
    input = {"by": by}
    given_answers = {name: answer for name, answer in GIVEN.items() if not _has_default(graph, name)}
    try:
        expected: Legacy = inline(graph, input, given_answers)
    except InvalidGraph:
        assume(False)
    assert driven(graph, input, given_answers)[0] == expected
    assert driven(graph, input, given_answers, drain_max_moments=1)[0] == expected
    assert driven(graph, input, given_answers, leaves=True)[0] == expected
    assert driven(graph, input, given_answers, leaves=True, drain_max_moments=1)[0] == expected
    every = driven(graph, input, given_answers, kill=lambda _: killed(applied=True))[0]
    assert every == expected or (has_deadline(graph) and every.without_events == expected.without_events)
    every_other = driven(graph, input, given_answers, kill=lambda commit: killed(applied=False) if commit % 2 else None)
    assert every_other[0].without_events == expected.without_events


@settings(deadline=None, max_examples=15, suppress_health_check=UNHURRIED)
@given(graph=small_graphs(), by=st.integers(-1, 2))
def test_a_crash_around_any_commit_of_any_graph_leaves_no_trace(graph: Graph, by: int) -> None:
    try:
        result = run_with_crashes(graph, {"by": by}, resolve=GIVEN)
    except InvalidGraph:
        assume(False)
    assert result.status.is_terminal


def _has_default(graph: Graph, field: str) -> bool:
    node = graph.nodes.get(field.removeprefix("answer_"))
    return node is not None and node.config["kind"] == "asks until"
