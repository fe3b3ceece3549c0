"""A question with a deadline in each store: parked at it, woken by it, and answered once, by whoever commits first."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from support.rig import Rig

from docket_celery import FINISH, START, Graph, Interrupt, RunStatus
from docket_celery.run.document import Run
from docket_celery.run.events import EventType
from docket_celery.storage.contracts.values import Storage
from docket_celery.testing import ManualClock
from docket_celery.vehicle.outcomes import Parked

DEFAULT = {"by": "nobody", "items": [1, 1.0, "a\x00b"]}


def ask(answer: dict[str, Any] | None = None) -> Any:
    return Interrupt("answer", timeout=60, default=DEFAULT) if answer is None else {"log": answer["by"]}


GRAPH = Graph("deadline").field("answer", dict[str, Any]).field("log", str).node("ask", ask)
GRAPH = GRAPH.edge(START, "ask").edge("ask", FINISH)


@pytest.fixture
def rig(storage: Storage, clock: ManualClock) -> Rig:
    return Rig(storage=storage, clock=clock)


@pytest.fixture
def asked(rig: Rig) -> Run:
    started = rig.start(GRAPH)
    assert rig.drain() == Parked(park="at")
    return rig.run(started.id)


def test_the_run_is_parked_at_the_deadline_and_found_due_only_then(rig: Rig, asked: Run) -> None:
    info = rig.info(asked.id)
    assert (info.run.status, info.wake_at) == (RunStatus.RUNNING, rig.clock.now() + timedelta(seconds=60))
    assert rig.verbs.drain() == 0
    rig.advance(60)
    assert rig.verbs.drain() == 1
    ended = rig.run(asked.id)
    assert ended.status is RunStatus.DONE
    assert repr(ended.fields["answer"]) == repr(DEFAULT)
    assert ended.fields["log"] == "nobody"
    assert [event.type for event in rig.events(asked.id)].count(EventType.INTERRUPT_EXPIRED) == 1


def test_the_default_is_read_back_exactly_as_it_was_asked(asked: Run) -> None:
    (question,) = asked.interrupts
    assert repr(question.default) == repr(DEFAULT)
    assert question.deadline == asked.next_due


def test_an_answer_in_time_wakes_the_run_at_once_and_the_deadline_means_nothing_any_more(rig: Rig, asked: Run) -> None:
    rig.advance(59)
    answered = rig.verbs.resolve_interrupt(asked.id, asked.interrupts[0].id, {"by": "Ada"})
    assert answered.next_due is None
    rig.advance(10)
    rig.verbs.drain()
    ended = rig.run(asked.id)
    assert ended.fields["log"] == "Ada"
    assert EventType.INTERRUPT_EXPIRED not in [event.type for event in rig.events(asked.id)]


def test_an_answer_that_is_committed_while_the_default_is_prepared_wins(rig: Rig, asked: Run) -> None:
    rig.advance(60)
    lease = rig.lease()
    rig.verbs.resolve_interrupt(asked.id, asked.interrupts[0].id, {"by": "Ada"})
    rig.drain(lease)
    rig.verbs.drain()
    ended = rig.run(asked.id)
    assert (ended.status, ended.fields["log"]) == (RunStatus.DONE, "Ada")


def test_cancelling_leaves_no_deadline(rig: Rig, asked: Run) -> None:
    rig.verbs.cancel_run(asked.id)
    info = rig.info(asked.id)
    assert (info.run.interrupts, info.wake_at) == ((), None)
    rig.advance(60)
    assert rig.verbs.drain() == 0
