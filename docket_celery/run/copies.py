"""Private copies of runs and events, for whoever may change them: they share no container with what they are of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from msgspec.structs import replace

from docket_celery.run.document import Failure, JsonValue, OpenInterrupt, Run, Task
from docket_celery.run.events import Event
from docket_celery.run.values import fresh


def copy_run(run: Run) -> Run:
    """The same run with containers of its own."""
    return replace(
        run,
        fields=_mapping(run.fields),
        tasks=tuple(map(_task, run.tasks)),
        interrupts=tuple(map(_interrupt, run.interrupts)),
        arrived=dict(run.arrived),
        failure=None if run.failure is None else _failure(run.failure),
    )


def copy_events(events: Iterable[Event], *, at: datetime | None = None) -> list[Event]:
    """The same events with containers of their own, stamped `at` when given."""
    return [replace(event, data=_mapping(event.data), at=at or event.at) for event in events]


def _task(task: Task) -> Task:
    writes = None if task.writes is None else _mapping(task.writes)
    return replace(task, answers=_mapping(task.answers), writes=writes)


def _interrupt(interrupt: OpenInterrupt) -> OpenInterrupt:
    return replace(
        interrupt,
        schema=_mapping(interrupt.schema),
        payload=fresh(interrupt.payload),
        default=fresh(interrupt.default),
    )


def _failure(failure: Failure) -> Failure:
    return replace(failure, details=_mapping(failure.details))


def _mapping(values: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    copied: dict[str, JsonValue] = fresh(dict(values))
    return copied
