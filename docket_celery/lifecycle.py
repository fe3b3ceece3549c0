"""From a moment to a durable transition, and then to whoever should know.

The order never varies: write, then tell. A commit that makes a run due wakes the dispatcher, after it is durable;
waking is speed only, and its failure is nobody's problem but the log's.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol

from docket_celery.clock import IdSource
from docket_celery.run.moment import Continue, Moment
from docket_celery.storage.contracts.values import (
    CommitProposal,
    Redeemed,
    Release,
    Retain,
    Schedule,
)
from docket_celery.telemetry.hook import Hook, MomentCommitted


class Waker(Protocol):
    """Tells the dispatcher, bounded and best effort, that work is due."""

    def wake(self) -> None:
        """Returns soon whatever happens; never raises."""
        ...


class NoWaker:
    """Leaves everything to the tick."""

    def wake(self) -> None:
        return None


def proposal(moment: Moment, claim: Redeemed, *, orphan_ttl: timedelta, ids: IdSource) -> CommitProposal:
    """The fenced write of one moment under the claim's private token. Repeating this very value is safe."""
    disposition = moment.disposition
    schedule: Schedule = Retain(ttl=orphan_ttl) if isinstance(disposition, Continue) else Release.from_park(disposition)
    return CommitProposal(
        run=moment.run,
        events=moment.events,
        changes=moment.changes,
        checkpoint_type=moment.checkpoint_type,
        schedule=schedule,
        expected_checkpoint_seq=moment.run.checkpoint_seq - 1,
        claim_token=claim.claim_token,
        commit_id=ids.token(),
        inbox_seq=claim.inbox_seq,
    )


def committed(moment: Moment, tenant: str | None, hook: Hook, waker: Waker | None = None) -> None:
    """What follows a durable transition: tell the hook, then wake the dispatcher if the run is due at once."""
    hook(MomentCommitted(moment=moment, tenant=tenant))
    disposition = moment.disposition
    if waker is not None and not isinstance(disposition, Continue) and disposition.kind == "immediate":
        waker.wake()
