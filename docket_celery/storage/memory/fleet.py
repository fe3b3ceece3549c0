"""Registered slots and totals in memory."""

from __future__ import annotations

from datetime import timedelta

from docket_celery.storage.contracts.fleet import Backlog, WorkerSlots
from docket_celery.storage.contracts.values import check_name
from docket_celery.storage.memory.candidates import candidates, is_expired
from docket_celery.storage.memory.state import State, StoredWorker, later


class MemoryFleet:
    """Implements `Fleet`."""

    def __init__(self, state: State) -> None:
        self._state = state

    def register_worker(self, worker: str, slots: int, *, ttl: timedelta, orphan_ttl: timedelta) -> None:
        check_name(worker, "worker")
        with self._state.lock:
            now = self._state.clock.now()
            self._state.workers[worker] = StoredWorker(
                slots=slots, orphan_ttl=orphan_ttl, seen_at=now, expires_at=later(now, ttl)
            )

    def unregister_worker(self, worker: str) -> None:
        with self._state.lock:
            self._state.workers.pop(worker, None)

    def backlog(self, *, orphan_ttl: timedelta, count_limit: int = 10_000) -> Backlog:
        with self._state.lock:
            now = self._state.clock.now()
            rows = self._state.runs.values()
            due = candidates(rows, now, orphan_ttl)
            sleeping = [stored.wake_at for stored in rows if stored.wake_at is not None and stored.wake_at > now]
            holding = [s for s in rows if s.claimed_at is not None and not is_expired(s, now, orphan_ttl)]
            poisoned = [stored for stored in rows if stored.poisoned_at is not None]
            return Backlog(
                now=now,
                due=min(len(due), count_limit),
                oldest_due_at=due[0].eligible_at if due else None,
                next_wake_at=min(sleeping, default=None),
                claimed=min(len(holding), count_limit),
                unredeemed=min(sum(not stored.claim_redeemed for stored in holding), count_limit),
                undelivered=min(sum(not s.claim_redeemed and s.undelivered > 0 for s in holding), count_limit),
                poisoned=min(len(poisoned), count_limit),
                last_scan_at=self._state.last_scan_at,
                workers=tuple(
                    WorkerSlots(worker=name, slots=worker.slots, orphan_ttl=worker.orphan_ttl, seen_at=worker.seen_at)
                    for name, worker in self._state.live_workers(now).items()
                ),
            )
