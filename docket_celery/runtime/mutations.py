"""Signals from outside, as pure decisions over a committed run. They need the plan of a graph, never its node code."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from docket_celery.errors import InactiveRun, InvalidInput, NotFound, shown
from docket_celery.program import RuntimeGraph
from docket_celery.run.document import Run, RunStatus
from docket_celery.run.events import Event, EventType
from docket_celery.run.moment import CheckpointType, Moment, Park
from docket_celery.runtime.draft import TERMINAL, Draft
from docket_celery.runtime.failures import LONGEST_MESSAGE, printable
from docket_celery.runtime.interrupts import answered, fitting, was_answered
from docket_celery.runtime.options import RuntimeOptions


def resolve_interrupt(
    program: RuntimeGraph, run: Run, interrupt_id: str, answer: Any, *, now: datetime, options: RuntimeOptions
) -> Moment | None:
    """The answer recorded and its node woken; None when this interrupt was answered before: the first answer stands,
    be it somebody's or, after a deadline, the default.

    `InactiveRun` for an ended run, `NotFound` for an id that is not open, `InvalidInput` for an answer that does not
    fit the interrupt's or the field's schema.
    """
    interrupt = next((open_ for open_ in run.interrupts if open_.id == interrupt_id), None)
    if interrupt is None and was_answered(run, interrupt_id):
        return None
    if run.status.is_terminal:
        raise InactiveRun(f"run {run.id!r} is {run.status.value}; interrupt {shown(interrupt_id)} cannot be answered")
    if interrupt is None:
        open_ids = [open_.id for open_ in run.interrupts]
        raise NotFound(f"run {run.id!r} has no open interrupt {shown(interrupt_id)}; open are {open_ids}")
    kept = fitting(program, interrupt, answer, options)
    draft = Draft(answered(run, [(interrupt, kept)]), at=now)
    draft.emit(EventType.INTERRUPT_RESOLVED, node=interrupt.node, id=interrupt_id, field=interrupt.field)
    return draft.moment(CheckpointType.INTERRUPT_RESOLVED, Park(kind="immediate", reason="interrupt_resolved"))


def cancel(run: Run, *, now: datetime, reason: str = "") -> Moment | None:
    """The run cancelled with nothing left open; None when it already is. `InactiveRun` if it ended otherwise.

    `InvalidInput` for a reason that is no text, or too long to be kept.
    """
    kept = check_reason(reason)
    if run.status is RunStatus.CANCELLED:
        return None
    if run.status.is_terminal:
        raise InactiveRun(f"run {run.id!r} is {run.status.value} and cannot be cancelled")
    draft = Draft(run, at=now)
    draft.end(RunStatus.CANCELLED)
    draft.emit(EventType.RUN_CANCELLED, **({"reason": kept} if kept else {}))
    return draft.moment(CheckpointType.RUN_CANCELLED, TERMINAL)


def forced_cancel(cancelled: Run, event: Event) -> Moment:
    """What a store has done that cancelled a run without reading it, as a moment to tell of."""
    return Moment(
        run=cancelled,
        events=(event,),
        changes=(),
        checkpoint_type=CheckpointType.RUN_CANCELLED,
        disposition=TERMINAL,
    )


def check_reason(reason: object) -> str:
    """A reason as events keep it: readable text. `InvalidInput` for anything else, or more than is kept."""
    if not isinstance(reason, str) or len(reason) > LONGEST_MESSAGE:
        raise InvalidInput(f"reason must be text of at most {LONGEST_MESSAGE} characters, got {shown(reason)}")
    return printable(reason)
