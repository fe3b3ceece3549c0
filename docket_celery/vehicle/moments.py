"""Takes a claimed run from moment to moment until it stops: propose, commit, tell.

Holds no connection, transaction or lock while node code runs, and decides nothing by itself: every write, and every
read of a value that was left behind, is fenced by the claim's token and the checkpoint sequence.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from datetime import datetime
from typing import Final

from msgspec.structs import replace

from docket_celery.engine import Engine
from docket_celery.errors import (
    ClaimInvariant,
    CorruptRecord,
    EventConflict,
    InvalidCommit,
    NotFound,
    RowRefused,
    StaleFence,
    ValueRefused,
)
from docket_celery.lifecycle import proposal, wake_when_due
from docket_celery.program import RuntimeGraph
from docket_celery.run.document import Failure, JsonValue, Run
from docket_celery.run.moment import Continue, Moment, Park
from docket_celery.runtime.failures import message_of, type_name
from docket_celery.runtime.loop import Withheld, propose_advance, propose_failure
from docket_celery.runtime.plan import Blocked, Ended, NotDue
from docket_celery.storage.contracts.rules import apply_changes
from docket_celery.storage.contracts.values import Retain
from docket_celery.telemetry.hook import MomentCommitted
from docket_celery.vehicle.claimed_work import ClaimedWork
from docket_celery.vehicle.drain import Drain
from docket_celery.vehicle.handbacks import HandBacks
from docket_celery.vehicle.outcomes import Boundary, Outcome, Parked

logger = logging.getLogger("docket_celery")

READ_LIMIT: Final = 30.0
"""Seconds that reading values which were left behind may take while the claim is renewed for it."""
COMMIT_LIMIT: Final = 30.0
"""Seconds that a commit may take while the claim is renewed for it."""
UNSTORABLE: Final = (RowRefused, ValueError, RecursionError)
"""What a store raises for a state that no repetition of the step would make storable."""


class Moments:
    """Advances claimed runs for one engine. `stopping` is asked between moments: true means leave in good order."""

    def __init__(self, engine: Engine, hand_backs: HandBacks, *, stopping: Callable[[], bool]) -> None:
        self._engine = engine
        self._hand_backs = hand_backs
        self._stopping = stopping

    def advance(self, drain: Drain, program: RuntimeGraph, run: Run) -> Outcome:
        """Advances the run to its next stop, and says how it ended. Raises `ClaimInvariant` for a run that contradicts
        its claim.
        """
        try:
            return self._to_next_stop(drain, program, run)
        except StaleFence as refusal:
            return self._hand_backs.discard(drain, str(refusal))
        except CorruptRecord as error:
            return self._hand_backs.abandon(drain, message_of(error))

    def _to_next_stop(self, drain: Drain, program: RuntimeGraph, run: Run) -> Outcome:
        """Moment after moment. Raises `StaleFence` once the fence is gone, and `CorruptRecord` for a value that is read
        late and cannot be decoded.
        """
        engine = self._engine
        work = ClaimedWork(engine.executor, drain, renewed=engine.config.lease_renewal, stopping=self._stopping)
        floor: datetime | None = drain.claimed_at
        drain.start()
        while True:
            proposed = propose_advance(
                program,
                run,
                executor=work,
                now=drain.now,
                fraction=engine.jitter.fraction,
                options=engine.options,
                resume_floor=floor,
                read=lambda names: self._read(drain, names),
            )
            if not isinstance(proposed, Moment):
                return self._without_a_moment(drain, run, proposed)
            moment, boundary = self._within_budget(drain, proposed)
            try:
                committed = self._commit(drain, run, moment)
            except (InvalidCommit, NotFound, EventConflict) as error:
                raise ClaimInvariant(f"the commit of claimed run {run.id!r} was rejected: {error}") from error
            engine.hooks(MomentCommitted(moment=committed, tenant=drain.lease.tenant))
            if not isinstance(committed.disposition, Continue):
                return self._parked(drain, committed, committed.disposition, boundary)
            run, floor = committed.run, None

    def _without_a_moment(self, drain: Drain, run: Run, reason: NotDue | Withheld | Blocked | Ended) -> Outcome:
        """Hands back a run that has no next moment now. `ClaimInvariant` for one that was never to be claimed."""
        match reason:
            case NotDue(resume_at=resume_at):
                return self._hand_backs.defer(drain, resume_at)
            case Withheld():
                return self._withheld(drain)
            case Blocked(interrupt_ids=ids):
                blocked = f"claimed run {run.id!r} is blocked on open interrupts {list(ids)}"
                raise ClaimInvariant(blocked, interrupt_ids=ids)
            case Ended():
                raise ClaimInvariant(f"claimed run {run.id!r} has already ended as {run.status.value}")

    def _withheld(self, drain: Drain) -> Outcome:
        """No node was allowed to begin, and nothing was executed."""
        if drain.held.lost:
            return self._hand_backs.discard(drain, "the claim was lost while it was renewed")
        if self._stopping():
            return self._hand_backs.release(drain, "the worker is stopping", at_once=True)
        return self._hand_backs.release(drain, "the claim's time does not allow the next node", at_once=True)

    def _within_budget(self, drain: Drain, moment: Moment) -> tuple[Moment, Boundary | None]:
        """The moment, narrowed to an immediate park if it would go on and a boundary is reached; and which one."""
        boundary = self._boundary(drain) if isinstance(moment.disposition, Continue) else None
        if boundary is None:
            return moment, None
        return moment.yielded("stopping" if boundary == "stopping" else "drain_budget"), boundary

    def _boundary(self, drain: Drain) -> Boundary | None:
        """What forbids the drain to go on beyond the moment at hand, if anything does."""
        config = self._engine.config
        by_count = config.drain_max_moments is not None and drain.committed + 1 >= config.drain_max_moments
        by_time = config.drain_max_elapsed is not None and drain.elapsed >= config.drain_max_elapsed
        if by_count and by_time:
            return "both"
        if by_count:
            return "max_moments"
        if by_time:
            return "max_elapsed"
        return "stopping" if self._stopping() else None

    def _commit(self, drain: Drain, run: Run, moment: Moment) -> Moment:
        """Commits `moment`; or, when its state cannot be stored at all, the failure of `run` for that reason. Returns
        what was committed.
        """
        try:
            return self._write(drain, self._worth_telling(drain, moment))
        except UNSTORABLE as error:
            logger.warning("run %s fails, since its next state cannot be stored: %s", run.id, message_of(error))
            failed = propose_failure(run, _not_storable(error), at=drain.now())
            return self._write(drain, self._worth_telling(drain, failed))

    def _worth_telling(self, drain: Drain, moment: Moment) -> Moment:
        """The moment, with all values of its run if a hook may read them. They are fetched before the commit, which may
        end the claim under which they are read.
        """
        unread = moment.run.unread
        if not unread or not self._engine.hooks.need_values(moment):
            return moment
        appended = [change for change in moment.changes if change.name in unread]
        return replace(moment, run=moment.run.having_read(apply_changes(self._read(drain, unread), appended)))

    def _write(self, drain: Drain, moment: Moment) -> Moment:
        """Commits the moment, and returns it. One that ends the claim may bring the slot's next run along."""
        drain.busy_for(COMMIT_LIMIT)
        lease, runs, slot = drain.lease, self._engine.storage.runs, drain.succession
        write = proposal(
            moment,
            claim_token=drain.token,
            inbox_seq=drain.inbox_seq,
            orphan_ttl=lease.orphan_ttl,
            quiet=drain.knows_the_time,
            commit_id=self._engine.ids.token(),
        )
        asked = None if isinstance(write.schedule, Retain) else slot.ask()
        slot.asked, slot.asked_at = None, drain.monotonic()
        done = drain.within_claim(lambda: runs.commit(lease.scope, write, take=asked))
        slot.taken, slot.heard_at = done.taken, drain.monotonic()
        slot.asked = asked if done.taken is None else None
        drain.moved(done, moment.run.checkpoint_seq)
        return moment

    def _parked(self, drain: Drain, moment: Moment, park: Park, boundary: Boundary | None) -> Parked:
        """Has the fleet woken when a run that parked until a later instant is due, and says how the run parked.

        The boundary is left out unless the park is immediate: a moment that was narrowed to one may have turned out to
        be unstorable, and then the run has parked as failed.
        """
        if park.kind == "at":
            wake_when_due(moment, self._engine.waker, now=drain.now())
        return Parked(park=park.kind, boundary=boundary if park.kind == "immediate" else None)

    def _read(self, drain: Drain, names: Collection[str]) -> dict[str, JsonValue]:
        """Values that the run at hand has left unread, as of its sequence."""
        drain.busy_for(READ_LIMIT)
        lease, runs = drain.lease, self._engine.storage.runs
        return drain.within_claim(
            lambda: runs.read_values(lease.run_id, drain.token, names, checkpoint_seq=drain.checkpoint_seq)
        )


def _not_storable(error: BaseException) -> Failure:
    """The failure of a run whose next state the store refuses for good."""
    if isinstance(error, ValueRefused):
        return Failure(code=error.code, message=message_of(error), details={"path": error.path})
    return Failure(code="not_storable", message=message_of(error), error_type=type_name(error))
