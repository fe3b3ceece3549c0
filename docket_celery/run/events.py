"""What happened to a run, in order. Events are written with the transition they describe, never alone."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

from msgspec import Struct, field

from docket_celery.run.document import JsonValue


class EventType(StrEnum):
    """Every kind of event. Values are wire names: add, never rename."""

    RUN_STARTED = "run_started"
    NODE_COMPLETED = "node_completed"
    NODE_FAILED = "node_failed"
    NODE_RETRY_SCHEDULED = "node_retry_scheduled"
    TIMER_SET = "timer_set"
    INTERRUPT_OPENED = "interrupt_opened"
    INTERRUPT_RESOLVED = "interrupt_resolved"
    INTERRUPT_EXPIRED = "interrupt_expired"
    STEP_COMMITTED = "step_committed"
    RUN_DONE = "run_done"
    RUN_FAILED = "run_failed"
    RUN_CANCELLED = "run_cancelled"


class Event(Struct, frozen=True, kw_only=True):
    """One fact. `seq` counts from 1 without a hole within its run; `at` is database time and decides nothing."""

    run_id: str
    seq: int
    type: EventType
    step: int
    at: datetime
    node: str | None = None
    data: Mapping[str, JsonValue] = field(default_factory=dict)
