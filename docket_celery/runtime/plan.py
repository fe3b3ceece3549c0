"""What a committed run needs next. Decides, and touches nothing."""

from __future__ import annotations

from datetime import datetime
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from docket_celery.run.document import OpenInterrupt, Run, Task
from docket_celery.runtime.interrupts import overdue


class Proceed(Struct, frozen=True, kw_only=True):
    """There is something to do: `ready` tasks to execute, or none but a superstep that can close.

    `tasks` is the whole superstep with its due timers fired, in order of node id.
    """

    tasks: tuple[Task, ...]
    ready: tuple[Task, ...]


class Expire(Struct, frozen=True, kw_only=True):
    """These open interrupts are past their deadlines and take their defaults before anything else happens."""

    interrupts: tuple[OpenInterrupt, ...]


class NotDue(Struct, frozen=True, kw_only=True):
    """Everything waits, and the first of it until `resume_at`."""

    resume_at: datetime


class Blocked(Struct, frozen=True, kw_only=True):
    """Nothing but open interrupts is left, and none has a deadline."""

    interrupt_ids: tuple[str, ...]


class Ended(Struct, frozen=True, kw_only=True):
    """The run is terminal."""


Plan: TypeAlias = Proceed | Expire | NotDue | Blocked | Ended


def plan(run: Run, now: datetime) -> Plan:
    """The next thing for `run` at `now`."""
    if run.status.is_terminal:
        return Ended()
    expired = overdue(run, now)
    if expired:
        return Expire(interrupts=expired)
    tasks = tuple(_fire(task, now) for task in run.tasks)
    ready = tuple(task for task in tasks if task.state == "ready")
    if ready or all(task.state == "finished" for task in tasks):
        return Proceed(tasks=tasks, ready=ready)
    if tasks != run.tasks:
        return Proceed(tasks=tasks, ready=())
    resume_at = run.next_due
    if resume_at is None:
        return Blocked(interrupt_ids=tuple(interrupt.id for interrupt in run.interrupts))
    return NotDue(resume_at=resume_at)


def _fire(task: Task, now: datetime) -> Task:
    """The task with its timer fired, if it has one that is due."""
    if task.due_at is None or task.due_at > now:
        return task
    return replace(task, state="finished" if task.state == "sleeping" else "ready", due_at=None)
