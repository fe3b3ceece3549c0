"""What waiting, retrying and crashing may not change: the bound of supersteps, and what a barrier waits for."""

from __future__ import annotations

from typing import Any

import pytest

from docket_celery import FINISH, START, Graph, Interrupt, NodeContext, Retry, RunStatus
from docket_celery.compiler import verify
from docket_celery.program import RuntimeEdge, RuntimeGraph
from docket_celery.runtime.barrier import fire
from docket_celery.testing import run_inline, run_with_crashes


def logs(ctx: NodeContext) -> dict[str, str]:
    return {"log": ctx.node}


def fails_once(ctx: NodeContext) -> dict[str, str]:
    if ctx.attempt == 1:
        raise OSError("not yet")
    return logs(ctx)


def asks(ctx: NodeContext, answer: str | None = None) -> Any:
    return Interrupt("answer") if answer is None else logs(ctx)


def asks_until(ctx: NodeContext, answer: str | None = None) -> Any:
    return Interrupt("answer", timeout=5, default="nobody") if answer is None else logs(ctx)


def a_line(length: int, *, bound: int = 5, **special: Any) -> Graph:
    graph = Graph("line", max_supersteps=bound).field("answer", str).field("log", list[str], reducer="append")
    names = [f"s{number}" for number in range(1, length + 1)]
    for name in names:
        graph = graph.node(name, special.get(name, logs), retry=Retry(max_attempts=2))
    for source, target in zip([START, *names], [*names, FINISH], strict=True):
        graph = graph.edge(source, target)
    return graph


@pytest.mark.parametrize("node", [logs, fails_once, asks, asks_until])
def test_neither_a_retry_nor_a_question_nor_a_crash_uses_up_a_superstep(node: Any) -> None:
    exact = run_with_crashes(a_line(5, s3=node), resolve={} if node is asks_until else {"answer": "yes"})
    assert exact.status is RunStatus.DONE
    assert exact.fields["log"] == ["s1", "s2", "s3", "s4", "s5"]

    beyond = run_with_crashes(a_line(6, s3=node), resolve={} if node is asks_until else {"answer": "yes"})
    assert beyond.run.failure is not None
    assert beyond.run.failure.code == "max_supersteps"
    assert beyond.fields["log"] == ["s1", "s2", "s3", "s4", "s5"]


@pytest.mark.parametrize("bound", [0, -1])
def test_a_bound_below_one_is_refused_before_anything_runs(bound: int) -> None:
    assert [found.path for found in verify(a_line(1, bound=bound))] == ["max_supersteps"]


def a_join(route: str) -> Graph:
    """`c` waits for `a` and `b`; the guard on the way to each is `route`."""
    graph = Graph("join").input("route", str).field("log", list[str], reducer="append").field("out", str)
    for name in "abc":
        graph = graph.node(name, logs)
    graph = graph.node("d", lambda: {"log": "d", "out": "written"}).output("out")
    for name in "ab":
        graph = graph.edge(START, name, when=route.format(name=name))
    return graph.edge(["a", "b"], "c").edge("c", "d").edge("d", FINISH)


def test_a_join_over_a_branch_not_taken_fails_and_names_who_is_missing() -> None:
    result = run_with_crashes(a_join("route == '{name}'"), {"route": "a"})
    assert result.status is RunStatus.FAILED
    assert result.run.failure is not None
    assert result.run.failure.code == "unsatisfied_barrier"
    assert result.run.failure.details["barriers"] == [
        {"edge": "[a, b] -> c", "target": "c", "seen": ["a"], "missing": ["b"]}
    ]
    assert result.fields["log"] == ["a"]


def test_a_join_over_both_branches_runs_once() -> None:
    result = run_with_crashes(a_join("route != '{name}'"), {"route": "both"})
    assert result.fields["log"] == ["a", "b", "c", "d"]
    assert result.output == {"out": "written"}


def test_a_barrier_of_many_costs_each_of_them_the_same() -> None:
    """Sorting who has come anew at each arrival, a join over four thousand took a second and a half."""
    compared: list[str] = []

    class Name(str):
        def __lt__(self, other: str) -> bool:
            compared.append(self)
            return str.__lt__(self, other)

    names = tuple(Name(f"n{number:03}") for number in range(400))
    join = RuntimeEdge(id="join", sources=names, target="end", is_barrier=True)
    outgoing = dict.fromkeys(names, (join,))
    program = RuntimeGraph(graph_id="g", graph_hash="h", fields={}, nodes={}, outgoing=outgoing, outputs=())
    assert fire(program, names[1:], {}, {}).arrived == {"join": names[1:]}
    assert fire(program, names[:1], {}, {"join": names[1:]}).targets == ("end",)
    assert len(compared) < 10 * len(names)


def test_a_barrier_in_a_cycle_starts_afresh_each_time_round() -> None:
    graph = (
        Graph("rounds", max_supersteps=20)
        .field("n", int, reducer="sum")
        .field("log", list[str], reducer="append")
        .node("fork", lambda ctx: {"n": 1, "log": f"fork@{ctx.step}"})
        .node("quick", logs)
        .node("slow", logs)
        .node("slower", logs)
        .node("join", logs)
        .edge(START, "fork")
        .edge("fork", "quick")
        .edge("fork", "slow")
        .edge("slow", "slower")
        .edge(["quick", "slower"], "join")
        .edge("join", "fork", when="n < 3")
        .edge("join", FINISH, when="n >= 3")
    )
    result = run_with_crashes(graph)
    assert result.status is RunStatus.DONE
    assert result.fields["log"].count("join") == 3
    assert [entry for entry in result.fields["log"] if entry.startswith("fork")] == ["fork@1", "fork@5", "fork@9"]


def test_a_graph_may_end_with_nothing_left_to_do_and_without_finish() -> None:
    graph = Graph("quiet").field("log", list[str], reducer="append").node("a", logs).edge(START, "a")
    assert run_inline(graph).status is RunStatus.DONE
