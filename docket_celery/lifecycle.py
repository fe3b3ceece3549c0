"""What a moment calls for: the write that commits it and, once that is durable, the wake of whoever claims runs.

Pure but for the wake, which the caller asks for after the commit and never before. Waking is speed only: the tick finds
whatever a lost wake was about.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Protocol

from docket_celery.run.moment import Continue, Moment
from docket_celery.storage.contracts.values import (
    CommitProposal,
    Release,
    Retain,
    Schedule,
)


class Waker(Protocol):
    """Tells the dispatcher, bounded and best effort, that work is due. The tick is the guarantee."""

    def wake(self, *, after: float = 0.0) -> None:
        """Now, or `after` so many seconds if the next tick would come later. Returns at once; never raises."""
        ...


class NoWaker:
    """Leaves everything to the tick."""

    def wake(self, *, after: float = 0.0) -> None:
        return None


def proposal(
    moment: Moment, *, claim_token: str, inbox_seq: int, orphan_ttl: timedelta, quiet: bool, commit_id: str
) -> CommitProposal:
    """The fenced write of one moment under the claim's private token. Repeating this very value is safe.

    quiet  that of `Retain`, for a moment that keeps the claim
    """
    disposition = moment.disposition
    schedule: Schedule
    if isinstance(disposition, Continue):
        schedule = Retain(ttl=orphan_ttl, quiet=quiet)
    else:
        schedule = Release.from_park(disposition)
    return CommitProposal(
        run=moment.run,
        events=moment.events,
        changes=moment.changes,
        checkpoint_type=moment.checkpoint_type,
        schedule=schedule,
        expected_checkpoint_seq=moment.run.checkpoint_seq - 1,
        claim_token=claim_token,
        commit_id=commit_id,
        inbox_seq=inbox_seq,
    )


def wake_when_due(moment: Moment, waker: Waker, *, now: datetime) -> None:
    """Wakes the dispatcher for a durable transition that makes its run due, at once or soon."""
    disposition = moment.disposition
    if isinstance(disposition, Continue):
        return
    if disposition.kind == "immediate":
        waker.wake()
    elif disposition.at is not None:
        waker.wake(after=max((disposition.at - now).total_seconds(), 0.0))
