"""What a vehicle knows while it drains one lease: the claim, how long it lasts, the database clock, and the progress.

Knows no store and no engine: the vehicle tells it what it heard. The process's own wall clock is never read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, TypeVar

from docket_celery.errors import StoreUnavailable
from docket_celery.renewal import Held
from docket_celery.storage.contracts.claims import Lease, Redeemed
from docket_celery.storage.contracts.values import Committed
from docket_celery.vehicle.succession import Succession

logger = logging.getLogger("docket_celery")

T = TypeVar("T")

FRESH: Final = 1.0
"""Seconds for which a reading of the database clock is carried on without another. The monotonic clock stands still
while a machine sleeps, so it is never left alone for long.
"""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds before a store call that could not reach the database is repeated; doubles from the first to the second."""


@dataclass(slots=True, kw_only=True)
class Drain:
    """One drain. Until something newer is heard, the facts are those of the lease.

    token       the private token chosen for the claim; nobody else ever has it
    began       when the claim was asked for, in monotonic seconds
    pause       sleeps for seconds
    succession  the next run of the slot
    """

    lease: Lease
    token: str
    began: float
    monotonic: Callable[[], float]
    pause: Callable[[float], None]
    succession: Succession = field(default_factory=Succession)
    held: Held = field(init=False)
    checkpoint_seq: int = field(init=False)
    claim_attempt: int = field(init=False)
    claimed_at: datetime = field(init=False)
    inbox_seq: int = 0
    committed: int = 0
    """Moments committed so far."""
    _started: float | None = None
    _sent_at: float = field(init=False)
    _heard_now: datetime = field(init=False)
    _heard_at: float = field(init=False)

    def __post_init__(self) -> None:
        # The redemption may be repeated for as long as the claim lasts.
        self.held = Held(self.lease.run_id, self.token, self.began + self.lease.orphan_ttl.total_seconds())
        self.checkpoint_seq = self.lease.checkpoint_seq
        self.claim_attempt = self.lease.claim_attempt
        self.claimed_at = self._heard_now = self.lease.claimed_at
        # What the claim really has left is told by the redemption, which leaves a young claim's time alone.
        self._sent_at = self._heard_at = self.held.renewed_at = self.began

    def now(self) -> datetime:
        """The database clock: the latest reading plus the time that has passed here since."""
        return self._heard_now + timedelta(seconds=self.monotonic() - self._heard_at)

    @property
    def knows_the_time(self) -> bool:
        """Whether the latest reading of the database clock is fresh."""
        return self.monotonic() - self._heard_at < FRESH

    @property
    def expires_at(self) -> float:
        """Monotonic seconds from which on the claim may be stolen, by what is known here."""
        return self.held.renewed_at + self.lease.orphan_ttl.total_seconds()

    @property
    def elapsed(self) -> float:
        """Seconds since the first moment was begun; 0 before."""
        return 0.0 if self._started is None else max(self.monotonic() - self._started, 0.0)

    @property
    def claim_held(self) -> float:
        """Seconds since the lease was claimed."""
        return max((self.now() - self.lease.claimed_at).total_seconds(), 0.0)

    def start(self) -> None:
        """The drain budget counts from here."""
        self._started = self.monotonic()

    def busy_for(self, seconds: float) -> None:
        """The claim is worth renewing for the next `seconds`."""
        self.held.until = self.monotonic() + seconds

    def redeemed(self, claim: Redeemed, heard_at: float | None = None) -> None:
        """Takes over what the redemption said; `heard_at` is when, in monotonic seconds, if not just now."""
        self.checkpoint_seq = claim.run.checkpoint_seq
        self.claim_attempt = claim.claim_attempt
        self.inbox_seq = claim.inbox_seq
        self.held.renewed_at = float("-inf")
        self._hear(claim.now, claim.claimed_at, heard_at)

    def moved(self, done: Committed, checkpoint_seq: int) -> None:
        """Takes over what a commit said."""
        self.committed += 1
        self.checkpoint_seq = checkpoint_seq
        if done.now is not None:
            self._hear(done.now, done.claimed_at)

    def within_claim(self, call: Callable[[], T]) -> T:
        """The result of a store call, repeated while the database cannot be reached and the claim has time left.

        Raises the last `StoreUnavailable` when the time is up. The call must be safe to repeat after a lost reply.
        """
        pause = FIRST_PAUSE
        while True:
            self._sent_at = self.monotonic()
            try:
                return call()
            except StoreUnavailable as error:
                if self.monotonic() + pause >= self.expires_at:
                    raise
                logger.warning("run %s: %s; again in %.2f s", self.lease.run_id, error, pause)
            self.pause(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    def _hear(self, now: datetime, claimed_at: datetime | None, heard_at: float | None = None) -> None:
        """A reading of the database clock, taken between sending the call and its answer."""
        self._heard_now, self._heard_at = now, self.monotonic() if heard_at is None else heard_at
        if claimed_at is not None:
            self.claimed_at = claimed_at
            renewed_at = self._sent_at - (now - claimed_at).total_seconds()
            self.held.renewed_at = max(self.held.renewed_at, renewed_at)
