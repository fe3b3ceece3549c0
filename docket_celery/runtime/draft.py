"""A transition of a run while it is being put together, and the moment that it becomes."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from msgspec.structs import replace

from docket_celery.run.document import Failure, JsonValue, Run, RunStatus
from docket_celery.run.events import Event, EventType
from docket_celery.run.moment import Change, CheckpointType, Disposition, Moment, Park

TERMINAL: Final = Park(kind="terminal")
"""The stop of a run that has ended."""


class Draft:
    """The transition being put together: how the run is to differ from before, and the events numbered as they come."""

    def __init__(self, before: Run, *, at: datetime) -> None:
        self.before = before
        self.at = at
        self._events: list[Event] = []
        self._parts: dict[str, Any] = {}

    @property
    def status(self) -> RunStatus:
        """The run's status as it is to be."""
        status: RunStatus = self._parts.get("status", self.before.status)
        return status

    def change(self, **parts: Any) -> None:
        """Parts of the run, by their names, that are to be different. The run is built anew once, by `moment`."""
        self._parts.update(parts)

    def emit(self, type: EventType, *, node: str | None = None, **data: JsonValue) -> None:
        """Adds the next event; it belongs to the superstep that was open before."""
        run, seq = self.before, self.before.event_seq + len(self._events) + 1
        self._events.append(Event(run_id=run.id, seq=seq, type=type, step=run.step, at=self.at, node=node, data=data))

    def moment(self, checkpoint: CheckpointType, disposition: Disposition, changes: tuple[Change, ...] = ()) -> Moment:
        """The finished moment. Nothing else in the runtime advances sequence numbers and times."""
        run = replace(
            self.before,
            **self._parts,
            checkpoint_seq=self.before.checkpoint_seq + 1,
            event_seq=self.before.event_seq + len(self._events),
            updated_at=self.at,
            finished_at=self.at if self.status.is_terminal else None,
        )
        return Moment(
            run=run, events=tuple(self._events), changes=changes, checkpoint_type=checkpoint, disposition=disposition
        )

    def end(self, status: RunStatus, failure: Failure | None = None) -> None:
        """Makes the run terminal: a run that has ended has no open parts."""
        self.change(status=status, tasks=(), interrupts=(), arrived={}, failure=failure)

    def fail(self, failure: Failure) -> None:
        """Ends the run as failed and says why."""
        self.end(RunStatus.FAILED, failure)
        self.emit(EventType.RUN_FAILED, node=failure.node, code=failure.code, message=failure.message)
