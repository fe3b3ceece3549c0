"""Whether the fleet makes progress, judged from the database alone: an answer for probes.

A worker that answers a ping may have stopped consuming long ago. Here only work counts: runs that are due and nobody
looks for, or leases that are handed out and nobody takes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from docket_celery.storage.contracts.fleet import Backlog, WorkerSlots


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The verdict, and what it rests on."""

    healthy: bool
    reason: str


def judge(backlog: Backlog, *, due_limit: timedelta, scan_limit: timedelta) -> Health:
    """Unhealthy when a run has been due for longer than `due_limit` while the last scan is older than `scan_limit`, or
    when leases go untaken again and again while no run is under way.

    A fleet whose slots are all taken is healthy however long other runs wait: it works, there is only too little of it.
    """
    waited, unscanned = age(backlog.now, backlog.oldest_due_at), age(backlog.now, backlog.last_scan_at)
    if backlog.undelivered and backlog.claimed == backlog.unredeemed:
        return Health(healthy=False, reason=f"{backlog.undelivered} leases were handed out again and nobody takes any")
    if waited is None or waited <= due_limit:
        return Health(healthy=True, reason="no run is due" if waited is None else f"the oldest run is due for {waited}")
    overdue = f"a run has been due for {waited}, the limit is {due_limit}"
    if unscanned is not None and unscanned <= scan_limit:
        return Health(healthy=True, reason=f"{overdue}; the last scan was {unscanned} ago")
    if is_full(backlog):
        return Health(healthy=True, reason=f"{overdue}; every registered slot is taken")
    last = "nobody has ever scanned" if unscanned is None else f"the last scan was {unscanned} ago"
    return Health(healthy=False, reason=f"{overdue}, and {last}, the limit is {scan_limit}")


def is_full(backlog: Backlog) -> bool:
    """Whether every registered slot has a run under way."""
    slots = sum(worker.slots for worker in backlog.workers)
    return 0 < slots <= backlog.claimed - backlog.unredeemed


def disagreeing(workers: Iterable[WorkerSlots], orphan_ttl: timedelta) -> str:
    """Which workers judge claims by another TTL, as "w1 has 30 s, w2 has 90 s"; empty when none does."""
    return ", ".join(
        f"{worker.worker} has {worker.orphan_ttl.total_seconds():g} s"
        for worker in workers
        if worker.orphan_ttl != orphan_ttl
    )


def age(now: datetime, instant: datetime | None) -> timedelta | None:
    """Whole seconds since an instant, never negative; None for none."""
    return None if instant is None else timedelta(seconds=max(0, int((now - instant).total_seconds())))
