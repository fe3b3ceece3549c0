"""All that the reference store remembers: one lock and a few dictionaries.

The stores beside this module hold the lock for the whole of each operation; nothing here takes it by itself.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from docket_celery.clock import Clock, IdSource
from docket_celery.errors import NotFound, shown
from docket_celery.graph.elements import LONGEST_DELAY
from docket_celery.run.document import JsonValue, Run, RunStatus
from docket_celery.run.events import Event
from docket_celery.storage.contracts.values import GraphRef, Scope


@dataclass(slots=True, kw_only=True)
class StoredRun:
    """One run's row: the committed document and what only the store knows about it.

    A healthy running run has exactly one of `wake_at` and `claim_token`; a poisoned one has neither, and so has every
    run that is not running. `claim_token` and `claimed_at` come and go together, so do the two poison facts.
    """

    run: Run
    tenant: str | None
    start_key: str | None
    input_digest: str | None
    wake_at: datetime | None
    commit_id: str | None = None
    events: list[Event] = field(default_factory=list)
    claim_token: str | None = None
    claimed_at: datetime | None = None
    claim_redeemed: bool = False
    claim_attempts: int = 0
    claim_abandons: int = 0
    undelivered: int = 0
    abandon_reason: str | None = None
    poisoned_at: datetime | None = None
    poison_reason: str | None = None
    inbox_seq: int = 0

    @property
    def is_launchable(self) -> bool:
        """Running and not halted: the only runs that are ever claimed."""
        return self.run.status is RunStatus.RUNNING and self.poisoned_at is None

    def is_held_under(self, token: str) -> bool:
        """Whether `token` is the current claim."""
        return self.claim_token is not None and self.claim_token == token

    def clear_claim(self) -> None:
        self.claim_token = None
        self.claimed_at = None
        self.claim_redeemed = False

    def take_attempt_back(self) -> None:
        """Undoes the count of the current claim. An unredeemed lease has counted nothing yet."""
        if self.claim_redeemed:
            self.claim_attempts = max(0, self.claim_attempts - 1)

    def reset_counters(self) -> None:
        self.claim_attempts = 0
        self.claim_abandons = 0
        self.undelivered = 0
        self.abandon_reason = None

    def clear_poison(self) -> None:
        self.poisoned_at = None
        self.poison_reason = None

    def poison(self, at: datetime, reason: str) -> None:
        """Halts the run: no claim, no wake, until an operator retries it or a mutation moves it."""
        self.clear_claim()
        self.wake_at = None
        self.poisoned_at = at
        self.poison_reason = reason


@dataclass(slots=True, kw_only=True)
class StoredGraph:
    """One published version. `published_at` is that of its latest publication."""

    ref: GraphRef
    document: Mapping[str, JsonValue]
    published_at: datetime


@dataclass(slots=True, kw_only=True)
class StoredWorker:
    """One worker's registered slots, and until when they count."""

    slots: int
    orphan_ttl: timedelta
    seen_at: datetime
    expires_at: datetime


@dataclass(slots=True, kw_only=True)
class State:
    """The store's memory. `clock` is the clock that decides, `ids` the source of claim tokens."""

    clock: Clock
    ids: IdSource
    lock: threading.Lock = field(default_factory=threading.Lock)
    runs: dict[str, StoredRun] = field(default_factory=dict)
    start_keys: dict[tuple[str | None, str], str] = field(default_factory=dict)
    """`(tenant, start key)` to the id of the run that holds the key."""
    graphs: dict[tuple[str | None, GraphRef], StoredGraph] = field(default_factory=dict)
    workers: dict[str, StoredWorker] = field(default_factory=dict)
    last_scan_at: datetime | None = None

    def visible(self, scope: Scope, run_id: str) -> StoredRun:
        """The run's row, if `scope` may see it; otherwise `NotFound`."""
        stored = self.runs.get(run_id)
        if stored is None or not scope.sees(stored.tenant):
            raise NotFound(f"no run {shown(run_id)} in this scope")
        return stored

    def held(self, run_id: str, token: str) -> StoredRun | None:
        """The run's row, if `token` is its current claim."""
        stored = self.runs.get(run_id)
        return stored if stored is not None and stored.is_held_under(token) else None

    def live_workers(self, now: datetime) -> dict[str, StoredWorker]:
        """Registrations that have not run out, by worker, sorted."""
        return {name: worker for name, worker in sorted(self.workers.items()) if worker.expires_at > now}


def later(now: datetime, delay: timedelta) -> datetime:
    """`now + delay`, saturating so that no delay leaves what a timestamp can hold."""
    return now + min(delay, timedelta(seconds=LONGEST_DELAY))


def earlier(now: datetime, age: timedelta) -> datetime:
    """`now - age`, saturating like `later`."""
    return now - min(age, timedelta(seconds=LONGEST_DELAY))
