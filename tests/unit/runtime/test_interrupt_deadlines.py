"""Questions with a deadline: answered by whoever comes first, somebody outside or the run itself with the default."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from support.rig import Rig

from docket_celery import FINISH, START, Graph, Interrupt, Retry, Sleep
from docket_celery.errors import InvalidInput
from docket_celery.run.document import RunStatus
from docket_celery.run.events import EventType
from docket_celery.testing import InlineRun, ManualClock, run_inline


def graph(ask: Any) -> Graph:
    return (
        Graph("asking")
        .field("approved", str)
        .field("log", list[str], reducer="append")
        .node("ask", ask)
        .node("yes", lambda: {"log": "yes"})
        .node("late", lambda: {"log": "late"})
        .edge(START, "ask")
        .edge("ask", "yes", when="approved == 'yes'")
        .edge("ask", "late", when="approved == 'nobody'")
    )


def asks(approved: str | None = None) -> Any:
    if approved is None:
        return Interrupt("approved", schema=str, timeout=60, default="nobody")
    return {"log": f"answer {approved}"}


def test_at_the_deadline_the_default_answers_and_a_guard_can_branch_on_it() -> None:
    clock = ManualClock()
    began = clock.now()
    result = run_inline(graph(asks), clock=clock)
    assert result.status is RunStatus.DONE
    assert dict(result.fields) == {"approved": "nobody", "log": ["answer nobody", "late"]}
    assert clock.now() - began == timedelta(seconds=60)
    assert [event.data for event in result.events if event.type is EventType.INTERRUPT_EXPIRED] == [
        {"id": "ask@1.1", "field": "approved"}
    ]
    (opened,) = [event for event in result.events if event.type is EventType.INTERRUPT_OPENED]
    assert opened.data["due_at"] == (began + timedelta(seconds=60)).isoformat()


def test_an_answer_before_the_deadline_stands_and_no_default_follows() -> None:
    clock = ManualClock()
    began = clock.now()
    result = run_inline(graph(asks), resolve={"approved": "yes"}, clock=clock)
    assert result.fields["log"] == ["answer yes", "yes"]
    assert clock.now() == began
    assert EventType.INTERRUPT_EXPIRED not in [event.type for event in result.events]


def test_while_a_deadline_is_open_the_run_is_running_and_parked_at_it() -> None:
    rig = Rig()
    rig.start(graph(asks))
    rig.drain()
    run, info = rig.run(), rig.info()
    assert run.status is RunStatus.RUNNING
    assert run.only_answers_missing
    assert info.wake_at == run.interrupts[0].deadline == rig.clock.now() + timedelta(seconds=60)
    assert info.view == "scheduled"
    assert rig.verbs.await_run(run.id, timeout=1) == run


def test_the_earliest_of_several_deadlines_and_timers_wakes_the_run() -> None:
    def asking(field: str, timeout: float) -> Any:
        def node(answer: str | None = None) -> Any:
            return Interrupt(field, timeout=timeout, default=f"{field} late") if answer is None else None

        return node

    both = (
        Graph("both")
        .field("a", str)
        .field("b", str)
        .node("ask_a", asking("a", 90), inputs={"answer": "a"})
        .node("ask_b", asking("b", 30), inputs={"answer": "b"})
        .node("sleeps", lambda: Sleep(50))
    )
    for name in ("ask_a", "ask_b", "sleeps"):
        both = both.edge(START, name)
    run = InlineRun(both)
    began = run.clock.now()
    run.step()
    assert (run.run.next_due, run.run.only_answers_missing) == (began + timedelta(seconds=30), False)
    run.step()
    assert run.run.answered == ("ask_b@1.1",)
    assert run.finish().fields == {"a": "a late", "b": "b late"}
    assert run.clock.now() - began == timedelta(seconds=90)


def test_after_the_default_has_answered_a_later_answer_changes_nothing() -> None:
    rig = Rig(drain_max_moments=1)
    rig.start(graph(asks))
    rig.drain()
    rig.advance(60)
    rig.drain()
    expired = rig.run()
    assert (expired.interrupts, expired.answered) == ((), ("ask@1.1",))
    assert rig.verbs.resolve_interrupt(expired.id, "ask@1.1", "yes") == expired
    while rig.run().status is RunStatus.RUNNING:
        rig.drain()
    assert rig.run().fields["approved"] == "nobody"


def test_the_default_is_committed_before_the_node_sees_it() -> None:
    seen: list[tuple[str, int]] = []

    def ask(approved: str | None = None) -> Any:
        if approved is None:
            return Interrupt("approved", timeout=1, default="nobody")
        seen.append((approved, len(run.run.answered)))
        return None

    run = InlineRun(graph(ask))
    run.finish()
    assert seen == [("nobody", 1)]


def test_an_instant_already_past_answers_at_once() -> None:
    def ask(approved: str | None = None) -> Any:
        past = datetime(2020, 1, 1, tzinfo=UTC)
        return Interrupt("approved", until=past, default="nobody") if approved is None else None

    clock = ManualClock()
    began = clock.now()
    assert run_inline(graph(ask), clock=clock).fields["approved"] == "nobody"
    assert clock.now() == began


@pytest.mark.parametrize(("default", "schema"), [(7, None), ("no", {"enum": ["yes"]}), ({1}, None)])
def test_a_default_that_is_no_answer_is_the_nodes_failure_when_it_asks(default: Any, schema: Any) -> None:
    def ask() -> Any:
        return Interrupt("approved", schema=schema, timeout=60, default=default)

    bad = graph(ask)
    failure = run_inline(bad).run.failure
    assert failure is not None
    assert (failure.code, failure.node) == ("bad_interrupt", "ask")
    assert "default" in failure.message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"timeout": 60}, "default answer with a deadline"),
        ({"default": "x"}, "default answer with a deadline"),
        ({"timeout": 1, "until": datetime(2026, 1, 1, tzinfo=UTC), "default": 1}, "either timeout or until"),
        ({"timeout": -1, "default": 1}, "from 0 to"),
        ({"timeout": True, "default": 1}, "from 0 to"),
        ({"until": datetime(2026, 1, 1), "default": 1}, "aware datetime"),
        ({"until": datetime.max.replace(tzinfo=timezone(timedelta(hours=-5))), "default": 1}, "years 1 to 9999"),
    ],
)
def test_a_deadline_that_makes_no_sense_is_refused(arguments: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Interrupt("approved", **arguments)


@pytest.mark.parametrize(
    ("kind", "default", "kept"),
    [
        (Decimal, Decimal("1.10"), "1.10"),
        (datetime, datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01T00:00:00+00:00"),
        (list[int], (1, 2), [1, 2]),
    ],
)
def test_a_default_may_be_a_python_value_and_is_kept_in_its_json_form(kind: Any, default: Any, kept: Any) -> None:
    def ask(answer: Any = None) -> Any:
        return Interrupt("answer", schema=kind, timeout=5, default=default) if answer is None else None

    graph = Graph("typed").field("answer", kind).node("ask", ask).edge(START, "ask")
    assert run_inline(graph).fields == {"answer": kept}


def test_an_answer_to_an_appending_field_is_one_item_for_the_questions_schema() -> None:
    def ask(answers: list[str]) -> Any:
        return None if answers else Interrupt("answers", schema=str, timeout=5, default="late")

    graph = Graph("items").field("answers", list[str], reducer="append").node("ask", ask).edge(START, "ask")
    assert run_inline(graph).fields == {"answers": ["late"]}
    assert run_inline(graph, resolve={"answers": "in time"}).fields == {"answers": ["in time"]}


def test_none_is_a_default_like_any_other() -> None:
    def ask(answer: str | None = "unasked") -> Any:
        return Interrupt("answer", timeout=5, default=None) if answer == "unasked" else {"log": repr(answer)}

    nullable = Graph("n").field("answer", str | None).field("log", str).node("ask", ask).edge(START, "ask")
    assert run_inline(nullable.edge("ask", FINISH)).fields == {"answer": None, "log": "None"}


def test_a_node_that_fails_after_its_default_is_retried_with_the_same_answer() -> None:
    seen: list[tuple[str, int]] = []

    def ask(ctx: Any, approved: str | None = None) -> Any:
        if approved is None:
            return Interrupt("approved", timeout=60, default="nobody")
        seen.append((approved, ctx.attempt))
        if ctx.attempt == 1:
            raise OSError("not yet")
        return None

    flaky = Graph("f").field("approved", str).node("ask", ask, retry=Retry(max_attempts=2)).edge(START, "ask")
    assert run_inline(flaky).status is RunStatus.DONE
    assert seen == [("nobody", 1), ("nobody", 2)]
