"""Questions to somebody outside: bound to their occurrence, answered by id, visible only to who asked."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import pytest

from docket_celery import START, Graph, Interrupt
from docket_celery.compiler import compile
from docket_celery.errors import InactiveRun, InvalidInput, NotFound
from docket_celery.run.document import Run, RunStatus
from docket_celery.run.events import EventType
from docket_celery.runtime.interrupts import MOST_ANSWERED
from docket_celery.runtime.mutations import cancel, resolve_interrupt
from docket_celery.runtime.options import RuntimeOptions
from docket_celery.testing import InlineRun, run_inline

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def approve(total: float, approved: bool | None = None) -> Any:
    if approved is None:
        return Interrupt("approved", schema=bool, payload={"total": total})
    return {"log": f"approved: {approved}"}


graph = (
    Graph("g")
    .input("total", float)
    .field("approved", bool)
    .field("log", list[str], reducer="append")
    .node("approve", approve)
    .edge(START, "approve")
)


def waiting() -> Run:
    return run_inline(graph, {"total": 1.0}).run


def resolve(run: Run, interrupt_id: str, answer: Any) -> Any:
    return resolve_interrupt(compile(graph), run, interrupt_id, answer, now=NOW, options=RuntimeOptions())


def test_an_unanswered_interrupt_leaves_the_run_waiting() -> None:
    run = waiting()
    assert run.status is RunStatus.WAITING
    assert [(open_.id, open_.field, open_.payload) for open_ in run.interrupts] == [
        ("approve@1.1", "approved", {"total": 1.0})
    ]
    assert run.next_due is None


def test_the_answer_is_input_of_the_node_that_asked_and_written_with_its_superstep() -> None:
    result = run_inline(graph, {"total": 1.0}, resolve={"approved": True})
    assert result.status is RunStatus.DONE
    assert result.fields["approved"] is True
    assert result.fields["log"] == ["approved: True"]
    assert [event.type for event in result.events].count(EventType.INTERRUPT_RESOLVED) == 1


def test_parallel_interrupts_have_ids_of_their_own_and_take_answers_in_any_order() -> None:
    calls: list[str] = []

    def asking(field: str) -> Any:
        def node(answer: str | None = None) -> Any:
            calls.append(field)
            return Interrupt(field) if answer is None else None

        return node

    fields = ("q1", "q2", "q3")
    many = Graph("many")
    for field in fields:
        many = (
            many.field(field, str)
            .node(f"ask_{field}", asking(field), inputs={"answer": field})
            .edge(START, f"ask_{field}")
        )
    program = compile(many)
    run = run_inline(many).run
    ids = {open_.field: open_.id for open_ in run.interrupts}
    assert len(set(ids.values())) == 3
    for field in ("q3", "q1", "q2"):
        run = resolve_interrupt(program, run, ids[field], field.upper(), now=NOW, options=RuntimeOptions()).run
    assert {task.node: dict(task.answers) for task in run.tasks} == {
        f"ask_{field}": {field: field.upper()} for field in fields
    }

    calls.clear()
    result = run_inline(many, resolve=lambda open_: open_.field.upper())
    assert dict(result.fields) == {"q1": "Q1", "q2": "Q2", "q3": "Q3"}
    assert {field: calls.count(field) for field in fields} == dict.fromkeys(fields, 2)


def test_answering_twice_keeps_the_first_answer() -> None:
    moment = resolve(waiting(), "approve@1.1", True)
    assert moment.run.status is RunStatus.RUNNING
    assert resolve(moment.run, "approve@1.1", False) is None


def test_an_answer_among_hundreds_stands_while_any_of_its_siblings_is_open() -> None:
    crowd = Graph("crowd").field("approved", bool)
    for number in range(MOST_ANSWERED + 2):
        crowd = crowd.node(f"n{number:03}", lambda approved=None: Interrupt("approved") if approved is None else None)
        crowd = crowd.edge(START, f"n{number:03}")
    inline = InlineRun(crowd)
    inline.finish()
    *asked, last = [open_.id for open_ in inline.run.interrupts]
    for interrupt_id in asked:
        assert inline.resolve(interrupt_id, True) is not None
    assert inline.resolve(asked[0], False) is None
    for unknown in ("n000@1.2", "n000@1.01", "n000@1.0", "n000@1.x", "n000@2.1", last.removesuffix("1") + "2", None):
        with pytest.raises(NotFound):
            inline.resolve(unknown, True)
    inline.finish()
    assert inline.resolve(asked[0], False) is None


def test_an_unknown_interrupt_is_not_found_and_the_open_ones_are_named() -> None:
    with pytest.raises(NotFound, match=r"approve@9\.1.*approve@1\.1"):
        resolve(waiting(), "approve@9.1", True)


@pytest.mark.parametrize("answer", ["yes", 1, None, object()])
def test_an_answer_that_does_not_fit_is_refused_and_names_the_field(answer: Any) -> None:
    with pytest.raises(InvalidInput, match="approved"):
        resolve(waiting(), "approve@1.1", answer)


def test_an_ended_run_takes_no_answer() -> None:
    cancelled = cancel(waiting(), now=NOW)
    assert cancelled is not None
    with pytest.raises(InactiveRun):
        resolve(cancelled.run, "approve@1.1", True)


def test_cancelling_leaves_nothing_open_and_is_idempotent() -> None:
    cancelled = cancel(waiting(), now=NOW, reason="changed our mind")
    assert cancelled is not None
    run = cancelled.run
    assert (run.status, run.tasks, run.interrupts) == (RunStatus.CANCELLED, (), ())
    assert run.finished_at == NOW
    assert cancelled.events[-1].data == {"reason": "changed our mind"}
    assert cancel(run, now=NOW) is None


def test_a_done_run_cannot_be_cancelled() -> None:
    done = run_inline(graph, {"total": 1.0}, resolve={"approved": False}).run
    with pytest.raises(InactiveRun, match="done"):
        cancel(done, now=NOW)


def test_an_interrupt_for_an_unknown_field_is_the_nodes_failure() -> None:
    bad = Graph("g").node("a", lambda: Interrupt("nowhere")).edge(START, "a")
    result = run_inline(bad)
    assert result.run.failure is not None
    assert result.run.failure.code == "unknown_field"


@pytest.mark.parametrize(
    ("schema", "code"), [({"const": "x" * 2_000}, "payload_too_large"), ({"const": math.inf}, "value_refused")]
)
def test_the_schema_of_an_answer_is_bounded_as_a_value_is(schema: Any, code: str) -> None:
    asking = Graph("g").field("x").node("a", lambda: Interrupt("x", schema=schema)).edge(START, "a")
    result = run_inline(asking, options=RuntimeOptions(max_value_bytes=1_024))
    assert result.run.failure is not None
    assert (result.run.failure.code, "schema" in result.run.failure.message) == (code, True)
