"""Which runs one scan takes, and how many: pure selection over the stored rows. It changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from docket_celery.storage.contracts.claims import Demand
from docket_celery.storage.memory.state import State, StoredRun

CandidateClass = Literal["ready", "expired"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A run that a scan may take, the class that makes it eligible, and since when."""

    stored: StoredRun
    kind: CandidateClass
    eligible_at: datetime

    @property
    def rank(self) -> tuple[datetime, str]:
        return self.eligible_at, self.stored.run.id


def is_expired(stored: StoredRun, now: datetime, ttl: timedelta) -> bool:
    """Whether the run's claim is older than `ttl`; exactly `ttl` old it still holds."""
    return stored.claimed_at is not None and now - stored.claimed_at > ttl


def candidates(runs: Iterable[StoredRun], now: datetime, ttl: timedelta) -> list[Candidate]:
    """Every run that is due or whose claim has expired, longest eligible first."""
    found = []
    for stored in runs:
        if not stored.is_launchable:
            continue
        if stored.wake_at is not None and stored.wake_at <= now:
            found.append(Candidate(stored=stored, kind="ready", eligible_at=stored.wake_at))
        elif stored.claimed_at is not None and is_expired(stored, now, ttl):
            found.append(Candidate(stored=stored, kind="expired", eligible_at=stored.claimed_at + ttl))
    return sorted(found, key=lambda candidate: candidate.rank)


def next_wake(runs: Iterable[StoredRun], now: datetime) -> datetime | None:
    """The earliest wake that is still to come, within the hour."""
    wakes = (stored.wake_at for stored in runs if stored.is_launchable and stored.wake_at is not None)
    return min((wake for wake in wakes if now < wake <= now + timedelta(hours=1)), default=None)


def choose(ranked: Sequence[Candidate], limit: int, preference: CandidateClass | None) -> list[Candidate]:
    """At most `limit` of `ranked`, by rank, such that neither class starves the other.

    From two on each non-empty class gets a place; a single place goes to the preferred class if it has anybody.
    """
    if limit < 1:
        return []
    if limit == 1:
        preferred = [candidate for candidate in ranked if candidate.kind == preference]
        return list(preferred or ranked)[:1]
    chosen = list(ranked[:limit])
    crowded_out = [candidate for candidate in ranked[limit:] if candidate.kind not in {c.kind for c in chosen}]
    if crowded_out:
        chosen[-1] = crowded_out[0]
    return chosen


def free_slots(state: State, demand: Demand, now: datetime, ttl: timedelta) -> int:
    """How many leases the fleet can start now: its slots less the claims that still hold."""
    registered = state.live_workers(now)
    slots = demand.slots
    if slots is None:
        slots = sum(worker.slots for worker in registered.values()) if registered else 1
    holding = [
        stored for stored in state.runs.values() if stored.claimed_at is not None and not is_expired(stored, now, ttl)
    ]
    return max(0, slots - len(holding))


def gate_is_shut(state: State, demand: Demand, now: datetime) -> bool:
    """Whether a tick comes so soon after the last scan that it has nothing to add to it."""
    if demand.gate != "tick" or state.last_scan_at is None:
        return False
    # A scan that lies further ahead than an interval was made under a clock that has since been set back.
    return -demand.interval <= now - state.last_scan_at < demand.interval * 0.95
