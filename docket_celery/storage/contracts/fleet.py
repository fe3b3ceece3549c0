"""The fleet as the store sees it: slots that live workers registered, and how far along the queue is."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, Protocol, TypeAlias

Listening: TypeAlias = Literal["listening", "nobody", "pooled"]
"""Whether some worker listens for wakes by others; `pooled` where none can, as a pooler stands between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSlots:
    """One live worker's registration. It judges by `orphan_ttl` whether a claim has expired, whoever holds it."""

    worker: str
    slots: int
    orphan_ttl: timedelta
    seen_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """Operational totals for health checks, in the store's time. Counts stop at `count_limit`.

    unredeemed    of the unexpired claims, those whose lease nobody has taken yet
    undelivered   of these, those that were leased before and not taken either
    last_scan_at  the latest scan, by tick or nudge
    """

    now: datetime
    due: int
    oldest_due_at: datetime | None
    next_wake_at: datetime | None
    claimed: int
    unredeemed: int
    undelivered: int
    poisoned: int
    last_scan_at: datetime | None
    workers: tuple[WorkerSlots, ...]


class Fleet(Protocol):
    """Registers workers' slots and reads totals. Liveness is judged on the store's clock."""

    def register_worker(self, worker: str, slots: int, *, ttl: timedelta, orphan_ttl: timedelta) -> None:
        """States that `worker` can run `slots` vehicles and claims with `orphan_ttl`, for the next `ttl`. Repeating it
        renews."""
        ...

    def unregister_worker(self, worker: str) -> None:
        """Takes the registration back; unknown workers are ignored."""
        ...

    def backlog(self, *, orphan_ttl: timedelta, count_limit: int = 10_000) -> Backlog:
        """Reads the totals in one snapshot."""
        ...
