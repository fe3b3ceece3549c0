"""What readers get to see of runs: summaries for lists, operational facts for inspection, pages and their cursors.

None of these ever carries a claim token.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, TypeAlias

from docket_celery.errors import InvalidInput, shown
from docket_celery.run.document import Failure, Run, RunStatus
from docket_celery.run.events import Event

RunView: TypeAlias = Literal[
    "ready", "scheduled", "claimed", "expired", "poisoned", "waiting", "done", "failed", "cancelled"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One row of a list; its state document is not decoded."""

    run_id: str
    tenant: str | None
    graph_id: str
    graph_hash: str
    status: RunStatus
    step: int
    checkpoint_seq: int
    started_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    wake_at: datetime | None
    claimed_at: datetime | None
    poisoned_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """A committed run with its operational facts: schedule, claim, counters, poison. Never the token."""

    run: Run
    tenant: str | None
    start_key: str | None
    wake_at: datetime | None
    claimed_at: datetime | None
    claim_redeemed: bool
    claim_attempts: int
    claim_abandons: int
    undelivered: int
    abandon_reason: str | None
    poisoned_at: datetime | None
    poison_reason: str | None
    observed_at: datetime
    """The store's clock at the time of reading; instants above compare with it."""

    @property
    def run_id(self) -> str:
        return self.run.id

    @property
    def failure(self) -> Failure | None:
        return self.run.failure

    @property
    def view(self) -> RunView:
        """Status, refined for a running run. Expiry depends on the claimer's TTL and is not judged here."""
        if self.run.status is not RunStatus.RUNNING:
            return self.run.status.value  # type: ignore[return-value]
        if self.poisoned_at is not None:
            return "poisoned"
        if self.claimed_at is not None:
            return "claimed"
        if self.wake_at is not None and self.wake_at > self.observed_at:
            return "scheduled"
        return "ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCursor:
    """Exclusive position in the newest-first list: the full key of the last row seen."""

    started_at: datetime
    run_id: str

    def encode(self) -> str:
        """An opaque, URL-safe string."""
        micros = int((self.started_at - _EPOCH).total_seconds()) * 1_000_000 + self.started_at.microsecond
        return base64.urlsafe_b64encode(json.dumps([micros, self.run_id]).encode()).decode()

    @classmethod
    def decode(cls, text: str) -> RunCursor:
        """Reads what `encode` wrote; anything else raises `InvalidInput`."""
        try:
            micros, run_id = json.loads(base64.urlsafe_b64decode(text.encode("ascii")))
            if not isinstance(run_id, str) or "\x00" in run_id.encode().decode():
                raise ValueError("not the id of a run")
            seconds, micro = divmod(micros, 1_000_000)
            started_at = datetime.fromtimestamp(seconds, UTC).replace(microsecond=micro)
        except _NOT_OURS as error:
            raise InvalidInput(f"cursor {shown(text)} is not one that a page returned") from error
        return cls(started_at=started_at, run_id=run_id)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NOT_OURS = (ValueError, TypeError, AttributeError, OverflowError, RecursionError, OSError, binascii.Error)
"""What decoding text raises that is no cursor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage:
    """Newest first. Pass `next_before` as `before` to go on; it keeps the given cursor when nothing matched."""

    runs: tuple[RunSummary, ...]
    next_before: str | None
    has_more: bool

    @classmethod
    def of(cls, found: Sequence[RunSummary], *, limit: int, before: RunCursor | None) -> RunPage:
        """The page of the first `limit` runs that were found after `before`; one more of them says that more follow."""
        runs = tuple(found[:limit])
        last = RunCursor(started_at=runs[-1].started_at, run_id=runs[-1].run_id) if runs else before
        return cls(runs=runs, next_before=None if last is None else last.encode(), has_more=len(found) > limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPage:
    """Events in order of sequence, with the bounds of what is available, read in one snapshot.

    `oldest_available` above `after_seq + 1` says that events in between were pruned; `latest_committed` is the run's
    own counter and stays when its events are gone.
    """

    events: tuple[Event, ...]
    oldest_available: int | None
    latest_available: int | None
    latest_committed: int

    @property
    def pruned(self) -> int:
        """How many events, from the first on, existed and were removed since."""
        return self.latest_committed if self.oldest_available is None else self.oldest_available - 1
