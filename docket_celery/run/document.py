"""A run: one execution of one graph version, as it stands after its latest commit.

Plain frozen values. A run never holds anything about claims, leases or wakes: those are the store's own, so that the
pure core cannot depend on who executes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

JsonValue: TypeAlias = Any
"""A value in the exact JSON form that `run.values` admits: None, bool, int, float, str, list, dict with str keys."""


class RunStatus(StrEnum):
    """What the run itself is doing. Ready, claimed, scheduled and poisoned are views of a `running` run."""

    RUNNING = "running"
    WAITING = "waiting"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """Terminal statuses absorb: no transition leaves them."""
        return self in _TERMINAL


_TERMINAL = frozenset({RunStatus.DONE, RunStatus.FAILED, RunStatus.CANCELLED})

TaskState: TypeAlias = Literal["ready", "retrying", "interrupted", "sleeping", "finished"]


class Task(Struct, frozen=True, kw_only=True):
    """One activation of a node in the open superstep.

    ready        due now; `attempt` is the attempt that comes next
    retrying     failed before; due at `due_at`
    interrupted  waits for the open interrupt of the same `(node, step)`
    sleeping     has returned `writes` and counts as finished at `due_at`
    finished     has returned `writes`, which wait for the barrier (pending writes)
    """

    node: str
    step: int
    state: TaskState = "ready"
    attempt: int = 1
    due_at: datetime | None = None
    answers: Mapping[str, JsonValue] = field(default_factory=dict)
    """Answers to this activation's interrupts, by field: its inputs now, and its writes at the barrier."""
    asked: int = 0
    """How many interrupts this activation has opened; numbers the next one's id."""
    writes: Mapping[str, JsonValue] | None = None

    @property
    def task_id(self) -> str:
        """Stable identity within the run: the node and the superstep that activated it."""
        return f"{self.node}@{self.step}"


class OpenInterrupt(Struct, frozen=True, kw_only=True):
    """A question that only somebody outside can answer. `id` belongs to the occurrence, not to the place.

    With a `deadline`, `default` is the answer that the run gives itself once it has come.
    """

    id: str
    node: str
    step: int
    field: str
    schema: Mapping[str, JsonValue]
    payload: JsonValue = None
    deadline: datetime | None = None
    default: JsonValue = None
    opened_at: datetime | None = None


class Failure(Struct, frozen=True, kw_only=True):
    """Why a run failed, or an attempt: bounded text, readable without the classes that caused it."""

    code: str
    message: str
    node: str | None = None
    error_type: str | None = None
    details: Mapping[str, JsonValue] = field(default_factory=dict)


class Run(Struct, frozen=True, kw_only=True):
    """One run after its latest commit. A field that is neither in `fields` nor `unread` has no value."""

    id: str
    graph_id: str
    graph_hash: str
    status: RunStatus
    step: int
    """The open superstep, from 1; after the end, the last one that was opened."""
    checkpoint_seq: int
    event_seq: int
    fields: Mapping[str, JsonValue]
    unread: frozenset[str] = frozenset()
    """Fields whose value was left where it is stored until somebody needs it. Only a vehicle's run has any."""
    tasks: tuple[Task, ...] = ()
    interrupts: tuple[OpenInterrupt, ...] = ()
    arrived: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Fan-in barriers under way: edge id to the sources that have completed, sorted."""
    answered: tuple[str, ...] = ()
    """Ids of the latest answered interrupts, so that answering twice is recognised."""
    outputs: tuple[str, ...] = ()
    """Names of the fields that make up the output; none declared means all of them."""
    failure: Failure | None = None
    started_at: datetime
    updated_at: datetime
    finished_at: datetime | None = None

    @property
    def next_due(self) -> datetime | None:
        """The earliest instant at which a parked task has something to do; None when nothing has a time."""
        return next_due(self.tasks, self.interrupts)

    @property
    def only_answers_missing(self) -> bool:
        """Whether every task that is not finished has an open interrupt, with a deadline or without: only somebody
        outside, or a deadline, moves this run."""
        unfinished = {task.state for task in self.tasks} - {"finished"}
        return unfinished == {"interrupted"}

    @property
    def output(self) -> dict[str, JsonValue]:
        """The values of the output fields as committed so far; a field without a value is None.

        `ValueError` while one of them is unread.
        """
        names = self.outputs or sorted({*self.fields, *self.unread})
        unread = sorted(self.unread.intersection(names))
        if unread:
            raise ValueError(f"run {self.id!r}: of its output, {', '.join(unread)} has not been read from the store")
        return {name: self.fields.get(name) for name in names}

    def having_read(self, values: Mapping[str, JsonValue]) -> Run:
        """The same run, in which these values are not unread any more."""
        return replace(self, fields={**self.fields, **values}, unread=self.unread - values.keys())


def next_due(tasks: Iterable[Task], interrupts: Iterable[OpenInterrupt]) -> datetime | None:
    """The earliest instant at which one of these parts of a parked run has something to do, if any has a time."""
    times = [task.due_at for task in tasks if task.due_at is not None]
    times += [interrupt.deadline for interrupt in interrupts if interrupt.deadline is not None]
    return min(times, default=None)
