"""What a superstep is: planned on committed state, folded in a fixed order, committed as a whole."""

from __future__ import annotations

from typing import Any

import pytest

from docket_celery import FINISH, START, Graph, PermanentFailure, Retry
from docket_celery.errors import InvalidInput
from docket_celery.run.document import RunStatus
from docket_celery.run.events import EventType
from docket_celery.runtime.options import RuntimeOptions
from docket_celery.testing import ManualClock, run_inline


def logging_node(name: str) -> Any:
    return lambda: {"log": name}


def line(length: int, **edits: Any) -> Graph:
    graph = Graph("line", **edits).field("log", list[str], reducer="append").output("log")
    names = [f"s{number}" for number in range(1, length + 1)]
    for name in names:
        graph = graph.node(name, logging_node(name))
    for source, target in zip([START, *names], [*names, FINISH], strict=True):
        graph = graph.edge(source, target)
    return graph


def diamond(b: Any, c: Any, **fields: Any) -> Graph:
    graph = Graph("diamond").field("log", list[str], reducer="append")
    for name, options in fields.items():
        graph = graph.field(name, **options)
    return (
        graph.node("a", logging_node("a"))
        .node("b", b)
        .node("c", c)
        .node("d", logging_node("d"))
        .edge(START, "a")
        .edge("a", "b")
        .edge("a", "c")
        .edge(["b", "c"], "d")
        .edge("d", FINISH)
    )


def test_a_line_runs_each_node_once_in_order() -> None:
    result = run_inline(line(3))
    assert result.status is RunStatus.DONE
    assert result.output == {"log": ["s1", "s2", "s3"]}
    assert result.run.checkpoint_seq == 4


def test_events_are_numbered_without_a_hole_and_end_with_the_run() -> None:
    events = run_inline(line(2)).events
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert [event.type for event in events] == [
        EventType.RUN_STARTED,
        EventType.NODE_COMPLETED,
        EventType.STEP_COMMITTED,
        EventType.NODE_COMPLETED,
        EventType.STEP_COMMITTED,
        EventType.RUN_DONE,
    ]


def test_appends_of_one_superstep_fold_in_order_of_node_id() -> None:
    result = run_inline(diamond(logging_node("b"), logging_node("c")))
    assert result.fields["log"] == ["a", "b", "c", "d"]


def test_a_join_runs_once_after_all_its_sources() -> None:
    events = run_inline(diamond(logging_node("b"), logging_node("c"))).events
    assert [event.node for event in events if event.type is EventType.NODE_COMPLETED] == ["a", "b", "c", "d"]


def test_two_writers_of_a_plain_field_resolve_to_the_greatest_node_id() -> None:
    result = run_inline(diamond(lambda: {"x": 1}, lambda: {"x": 2}, x={"type_or_schema": int}))
    assert result.fields["x"] == 2


def test_a_guard_chooses_the_branch_on_the_state_after_the_step() -> None:
    graph = (
        Graph("branch")
        .input("total", float)
        .field("log", list[str], reducer="append")
        .node("price", lambda total: {"log": "price"})
        .node("review", logging_node("review"))
        .node("charge", logging_node("charge"))
        .edge(START, "price")
        .edge("price", "review", when="total > 1000.0")
        .edge("price", "charge", when="total <= 1000.0")
    )
    assert run_inline(graph, {"total": 1250.0}).fields["log"] == ["price", "review"]
    assert run_inline(graph, {"total": 12.0}).fields["log"] == ["price", "charge"]


def test_a_guard_that_cannot_be_evaluated_fails_the_run_and_names_the_edge() -> None:
    graph = Graph("bad").field("n", int).node("a", lambda: None).edge(START, "a").edge("a", FINISH, when="n > 1")
    result = run_inline(graph)
    assert result.status is RunStatus.FAILED
    assert result.run.failure is not None
    assert result.run.failure.code == "guard_failed"
    assert "a -> $finish" in result.run.failure.message


def test_a_barrier_that_can_never_fire_does_not_look_like_success() -> None:
    graph = (
        Graph("half")
        .input("route", bool)
        .field("log", list[str], reducer="append")
        .node("a", logging_node("a"))
        .node("b", logging_node("b"))
        .node("c", logging_node("c"))
        .edge(START, "a", when="route")
        .edge(START, "b", when="!route")
        .edge(["a", "b"], "c")
        .edge("c", FINISH)
    )
    result = run_inline(graph, {"route": True})
    assert result.status is RunStatus.FAILED
    assert result.fields["log"] == ["a"]
    assert result.run.failure is not None
    assert result.run.failure.code == "unsatisfied_barrier"
    assert result.run.failure.details["barriers"] == [
        {"edge": "[a, b] -> c", "target": "c", "seen": ["a"], "missing": ["b"]}
    ]


def loop(times: int) -> Graph:
    return (
        Graph("loop", max_supersteps=5)
        .field("n", int, reducer="sum")
        .node("inc", lambda: {"n": 1})
        .edge(START, "inc")
        .edge("inc", "inc", when=f"n < {times}")
        .edge("inc", FINISH, when=f"n >= {times}")
    )


@pytest.mark.parametrize(("graph", "status"), [(line(5, max_supersteps=5), "done"), (loop(5), "done")])
def test_exactly_the_bound_of_supersteps_is_allowed(graph: Graph, status: str) -> None:
    assert run_inline(graph).status == status


def test_one_superstep_beyond_the_bound_fails_with_the_state_so_far() -> None:
    result = run_inline(line(6, max_supersteps=5))
    assert result.status is RunStatus.FAILED
    assert result.run.failure is not None
    assert result.run.failure.code == "max_supersteps"
    assert result.fields["log"] == ["s1", "s2", "s3", "s4", "s5"]
    assert run_inline(loop(6)).fields["n"] == 5


def test_retries_do_not_use_up_supersteps() -> None:
    failures = iter([True, False])

    def flaky() -> dict[str, str]:
        if next(failures):
            raise OSError("not yet")
        return {"log": "s3"}

    graph = line(2, max_supersteps=3).node("s3", flaky, retry=Retry(max_attempts=2)).edge("s2", "s3")
    assert run_inline(graph).status is RunStatus.DONE


def test_a_node_sees_no_write_of_its_own_superstep() -> None:
    seen: list[int] = []

    def c(log: list[str]) -> dict[str, str]:
        seen.append(len(log))
        return {"log": "c"}

    run_inline(diamond(logging_node("b"), c))
    assert seen == [1]


def test_what_a_node_does_to_its_arguments_reaches_nobody() -> None:
    def b(items: list[str], meta: dict[str, int]) -> None:
        items.append("dirty")
        meta["k"] = 1

    def c(items: list[str]) -> dict[str, str]:
        return {"log": str(len(items))}

    graph = diamond(
        b, c, items={"type_or_schema": list[str], "default": []}, meta={"type_or_schema": dict, "reducer": "merge"}
    )
    result = run_inline(graph)
    assert result.fields["items"] == []
    assert result.fields["meta"] == {}
    assert result.fields["log"] == ["a", "0", "d"]


@pytest.mark.parametrize(
    ("returned", "code"),
    [
        ({"nowhere": 1}, "unknown_field"),
        ({1: 1}, "unknown_field"),
        (17, "bad_return"),
        ({"n": "text"}, "invalid_write"),
        ({"n": float("nan")}, "value_refused"),
        ({"n": {1, 2}}, "value_refused"),
    ],
)
def test_a_result_that_cannot_be_kept_is_the_nodes_own_permanent_failure(returned: Any, code: str) -> None:
    calls: list[int] = []

    def node() -> Any:
        calls.append(1)
        return returned

    graph = Graph("g").field("n", int).node("a", node, retry=Retry(max_attempts=5)).edge(START, "a")
    result = run_inline(graph)
    assert result.status is RunStatus.FAILED
    assert result.run.failure is not None
    assert (result.run.failure.code, result.run.failure.node) == (code, "a")
    assert len(calls) == 1


def test_a_value_over_the_limit_is_refused_with_path_size_and_limit() -> None:
    graph = Graph("g").field("text", str).node("a", lambda: {"text": "x" * 2_000}).edge(START, "a")
    result = run_inline(graph, options=RuntimeOptions(max_value_bytes=1_024))
    assert result.run.failure is not None
    assert result.run.failure.code == "payload_too_large"
    assert "$.text" in result.run.failure.message
    assert "1024" in result.run.failure.message.replace(",", "")


def test_a_failed_run_has_no_open_parts() -> None:
    graph = diamond(logging_node("b"), lambda: (_ for _ in ()).throw(PermanentFailure("no")))
    run = run_inline(graph).run
    assert run.status is RunStatus.FAILED
    assert (run.tasks, run.interrupts, dict(run.arrived)) == ((), (), {})
    assert run.fields["log"] == ["a"]
    assert run.finished_at is not None


@pytest.mark.parametrize(
    ("input", "named"), [({"n": 1, "m": 2}, "'m'"), ({}, "'n'"), ({"n": "one"}, "'n'"), ({"n": object()}, "'n'")]
)
def test_input_that_does_not_fit_is_refused_by_name(input: dict[str, Any], named: str) -> None:
    graph = Graph("g").input("n", int).node("a", lambda n: None).edge(START, "a")
    with pytest.raises(InvalidInput, match=named):
        run_inline(graph, input)


def test_a_run_whose_start_activates_nothing_is_done_at_once() -> None:
    graph = Graph("g").input("go", bool).node("a", lambda: None).edge(START, "a", when="go")
    assert run_inline(graph, {"go": False}).status is RunStatus.DONE


def test_an_async_node_is_awaited() -> None:
    async def node() -> dict[str, str]:
        return {"log": "awaited"}

    graph = Graph("g").field("log", list[str], reducer="append").node("a", node).edge(START, "a")
    assert run_inline(graph).fields["log"] == ["awaited"]


def test_a_late_return_is_a_timeout_and_its_writes_are_void() -> None:
    clock = ManualClock()

    def slow() -> dict[str, str]:
        clock.advance(2.5)
        return {"log": "late"}

    graph = Graph("g").field("log", list[str], reducer="append").node("a", slow, timeout=2.0).edge(START, "a")
    result = run_inline(graph, clock=clock)
    assert result.run.failure is not None
    assert result.run.failure.code == "timeout"
    assert result.fields["log"] == []
