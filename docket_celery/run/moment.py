"""A moment: one proposed transition of a run, computed before anything is written."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from docket_celery.run.document import JsonValue, Run
from docket_celery.run.events import Event


class CheckpointType(StrEnum):
    """What a commit was for. Values are wire names: add, never rename."""

    RUN_INITIALIZED = "run_initialized"
    STEP_COMMITTED = "step_committed"
    TASKS_PROGRESSED = "tasks_progressed"
    INTERRUPT_RESOLVED = "interrupt_resolved"
    RUN_DONE = "run_done"
    RUN_FAILED = "run_failed"
    RUN_CANCELLED = "run_cancelled"


class Replaced(Struct, frozen=True, kw_only=True):
    """The field's whole value is now `value`."""

    name: str
    value: JsonValue


class Appended(Struct, frozen=True, kw_only=True):
    """`items` were added at the end of the field's list: storage may write only these."""

    name: str
    items: tuple[JsonValue, ...]


Change: TypeAlias = Replaced | Appended
"""How one field differs from the previous commit. A transition names each field at most once."""

ParkKind: TypeAlias = Literal["immediate", "at", "external", "terminal"]


class Continue(Struct, frozen=True, kw_only=True):
    """The same vehicle goes on with the next moment."""


class Park(Struct, frozen=True, kw_only=True):
    """A committed stop: woken at once, at an instant (`at`), by somebody outside, or never."""

    kind: ParkKind
    at: datetime | None = None
    reason: str = ""


Disposition: TypeAlias = Continue | Park


class Moment(Struct, frozen=True, kw_only=True):
    """The run after the transition, the events and field changes it consists of, and what follows.

    `run` already carries the next `checkpoint_seq` and `event_seq`; `events` are numbered and complete.
    """

    run: Run
    events: tuple[Event, ...]
    changes: tuple[Change, ...]
    checkpoint_type: CheckpointType
    disposition: Disposition

    def yielded(self, reason: str) -> Moment:
        """This moment with its Continue narrowed to an immediate park; any other disposition stands."""
        if isinstance(self.disposition, Continue):
            return replace(self, disposition=Park(kind="immediate", reason=reason))
        return self
