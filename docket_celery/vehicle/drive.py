"""Drives one leased run: redeem, load, compile, then propose and commit one moment after the other until it stops.

Holds no connection, transaction or lock while node code runs, and decides nothing by itself: every write is fenced by
the private token it got for the lease and by the checkpoint sequence. A run that contradicts its claim raises
`ClaimInvariant`; the claim's expiry recovers it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import datetime
from typing import Final

from docket_celery.engine import Engine
from docket_celery.errors import (
    ClaimInvariant,
    CorruptRecord,
    EventConflict,
    InvalidCommit,
    NotFound,
    RowRefused,
    StaleFence,
    StoreError,
    StoreUnavailable,
    ValueRefused,
)
from docket_celery.lifecycle import proposal, wake_when_due
from docket_celery.program import RuntimeGraph
from docket_celery.programs import Incompatible
from docket_celery.renewal import holding
from docket_celery.run.document import Failure, JsonValue, Run, RunStatus
from docket_celery.run.moment import Continue, Moment
from docket_celery.runtime.failures import message_of, type_name
from docket_celery.runtime.loop import Withheld, propose_advance, propose_failure
from docket_celery.runtime.plan import Blocked, Ended, NotDue
from docket_celery.storage.contracts.claims import Lease, Redeemed
from docket_celery.storage.contracts.rules import apply_changes
from docket_celery.storage.contracts.taking import Taken
from docket_celery.storage.contracts.values import GraphRef, Retain
from docket_celery.telemetry.hook import LeaseRefused, MomentCommitted
from docket_celery.vehicle.claimed_work import ClaimedWork
from docket_celery.vehicle.drain import Drain
from docket_celery.vehicle.handbacks import HandBacks
from docket_celery.vehicle.outcomes import Boundary, FenceLost, Outcome, Parked, Released, Unreached
from docket_celery.vehicle.report import report_crash, report_end
from docket_celery.vehicle.succession import Succession

logger = logging.getLogger("docket_celery")

LOAD_LIMIT: Final = 30.0
"""Seconds that loading and compiling may take while the claim is renewed for it."""
COMMIT_LIMIT: Final = 30.0
"""Seconds that a commit may take while the claim is renewed for it."""
ENDING: Final = 1.0
"""Seconds beyond a deadline that belong to it: the clean-up of an interrupted node. After that a vehicle is hung."""
TOO_LATE: Final = "its slot did not get to it in time"
UNSTORABLE: Final = (RowRefused, ValueError, RecursionError)
"""What a store raises for a state that no repetition of the step would make storable."""


class Vehicle:
    """Drains leases for one engine. `stopping` is asked between moments: true means leave in good order."""

    def __init__(self, engine: Engine, *, stopping: Callable[[], bool] = lambda: False) -> None:
        self._engine = engine
        self._stopping = stopping
        self._hand_backs = HandBacks(engine)

    def drain(self, lease: Lease, succession: Succession | None = None) -> Outcome:
        """Drives the lease's run to its next stop and says how it ended. The commit that stops it may bring along the
        next run of the slot: see `Succession`.

        Raises what it did not foresee, `ClaimInvariant` above all: the claim then waits for its expiry. An interrupt
        or exit that ends the process passes through as well, once the claim is given back; but a vehicle that is past
        its deadline by then hung, and was ended for it: its launch counts, or it would hang again for ever.
        """
        drain = self._new_drain(lease, self._engine.ids.token(), self._engine.clock.monotonic(), succession)
        return self._to_its_end(drain, lambda: self._redeem(drain))

    def drive(
        self, taken: Taken, *, asked_at: float, heard_at: float | None = None, succession: Succession | None = None
    ) -> Outcome:
        """The same for a run that was taken, so claimed and redeemed in one; `asked_at` is when that was asked for and
        `heard_at`, unless it is now, when the answer came, in monotonic seconds. One that has waited for long since,
        unrenewed, is given back unbegun. Without a claim there is nothing to drive: `ValueError`.
        """
        claim = taken.claim
        if claim is None:
            raise ValueError("no run was taken")
        (lease,) = taken.batch.leases
        drain = self._new_drain(lease, lease.claim_token, asked_at, succession)
        if drain.monotonic() - asked_at > lease.orphan_ttl.total_seconds() / 3:
            return self._to_its_end(drain, lambda: self._hand_backs.release(drain, TOO_LATE, at_once=True))
        return self._to_its_end(drain, lambda: self._begin(drain, claim, heard_at))

    def _new_drain(self, lease: Lease, token: str, began: float, succession: Succession | None) -> Drain:
        engine = self._engine
        return Drain(
            lease=lease,
            token=token,
            began=began,
            monotonic=engine.clock.monotonic,
            pause=engine.pause,
            succession=succession or Succession(),
        )

    def _to_its_end(self, drain: Drain, work: Callable[[], Outcome]) -> Outcome:
        """What `work` comes to, reported once."""
        engine = self._engine
        try:
            outcome = work()
        except StoreUnavailable as error:
            outcome = Unreached(reason=message_of(error))
        except BaseException as error:
            if isinstance(error, Exception) or drain.held.is_overdue(drain.monotonic(), by=ENDING):
                report_crash(engine.hooks, drain, error)
            else:
                report_end(engine.hooks, drain, self._stopped(drain, error))
            raise
        report_end(engine.hooks, drain, outcome)
        return outcome

    def _redeem(self, drain: Drain) -> Outcome:
        lease, runs = drain.lease, self._engine.storage.runs
        try:
            claim = drain.within_claim(lambda: runs.redeem_claim(lease, token=drain.token))
        except StaleFence as refusal:
            self._engine.hooks(LeaseRefused(run_id=lease.run_id, reason=str(refusal)))
            return FenceLost()
        except CorruptRecord as error:
            return self._begin(drain, error)
        return self._begin(drain, claim)

    def _begin(self, drain: Drain, claim: Redeemed | CorruptRecord, heard_at: float | None = None) -> Outcome:
        if isinstance(claim, CorruptRecord):
            return self._hand_backs.abandon(drain, message_of(claim))
        drain.redeemed(claim, heard_at)
        drain.busy_for(LOAD_LIMIT)
        with holding(self._engine.renewer, drain.held):
            return self._load(drain, claim.run)

    def _load(self, drain: Drain, run: Run) -> Outcome:
        if run.status is not RunStatus.RUNNING:
            raise ClaimInvariant(f"claimed run {run.id!r} is {run.status.value}", checkpoint_seq=run.checkpoint_seq)
        ref = GraphRef(graph_id=run.graph_id, graph_hash=run.graph_hash)
        try:
            program = self._engine.programs.get(drain.lease.scope, ref)
        except NotFound as error:
            missing = f"graph {ref.graph_id!r} version {ref.graph_hash} of claimed run {run.id!r} is missing"
            raise ClaimInvariant(missing) from error
        except StoreError as error:
            return self._hand_backs.release(drain, message_of(error))
        if isinstance(program, Incompatible):
            return self._hand_backs.abandon(drain, program.reason)
        beyond = self._beyond_host(program)
        if beyond is not None:
            return self._hand_backs.push_back(drain, beyond)
        return self._advance(drain, program, run)

    def _advance(self, drain: Drain, program: RuntimeGraph, run: Run) -> Outcome:
        try:
            return self._moments(drain, program, run)
        except StaleFence as refusal:
            return self._hand_backs.discard(drain, str(refusal))
        except CorruptRecord as error:
            return self._hand_backs.abandon(drain, message_of(error))

    def _moments(self, drain: Drain, program: RuntimeGraph, run: Run) -> Outcome:
        """Moment after moment to the next stop. Raises `StaleFence` once the fence is gone, and `CorruptRecord` for a
        value that was left unread and cannot be decoded.
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
            if isinstance(proposed, NotDue):
                return self._hand_backs.defer(drain, proposed.resume_at)
            if isinstance(proposed, Withheld):
                return self._withheld(drain)
            if isinstance(proposed, Blocked):
                blocked = f"claimed run {run.id!r} is blocked on open interrupts {list(proposed.interrupt_ids)}"
                raise ClaimInvariant(blocked, interrupt_ids=proposed.interrupt_ids)
            if isinstance(proposed, Ended):
                raise ClaimInvariant(f"claimed run {run.id!r} has already ended as {run.status.value}")
            moment, boundary = self._within_budget(drain, proposed)
            try:
                committed = self._commit(drain, run, moment)
            except (InvalidCommit, NotFound, EventConflict) as error:
                raise ClaimInvariant(f"the commit of claimed run {run.id!r} was rejected: {error}") from error
            engine.hooks(MomentCommitted(moment=committed, tenant=drain.lease.tenant))
            if not isinstance(committed.disposition, Continue):
                if committed.disposition.kind == "at":
                    wake_when_due(committed, engine.waker, now=drain.now())
                park = committed.disposition.kind
                return Parked(park=park, boundary=boundary if park == "immediate" else None)
            run, floor = committed.run, None

    def _read(self, drain: Drain, names: Collection[str]) -> dict[str, JsonValue]:
        """Values that the run at hand has left unread, as of its sequence."""
        drain.busy_for(LOAD_LIMIT)
        lease, runs = drain.lease, self._engine.storage.runs
        return drain.within_claim(
            lambda: runs.read_values(lease.run_id, drain.token, names, checkpoint_seq=drain.checkpoint_seq)
        )

    def _commit(self, drain: Drain, run: Run, moment: Moment) -> Moment:
        """Commits `moment`; or, when its state cannot be stored at all, the failure of `run` for that reason."""
        try:
            return self._write(drain, moment)
        except UNSTORABLE as error:
            logger.warning("run %s fails, since its next state cannot be stored: %s", run.id, message_of(error))
            return self._write(drain, propose_failure(run, _not_storable(error), at=drain.now()))

    def _write(self, drain: Drain, moment: Moment) -> Moment:
        """Commits, and returns what there is to tell."""
        unread = moment.run.unread
        if unread and self._engine.hooks.need_values(moment):
            # Before the commit, which may be the end of the claim.
            values = self._read(drain, unread)
            appended = [change for change in moment.changes if change.name in unread]
            moment = replace(moment, run=moment.run.having_read(apply_changes(values, appended)))
        drain.busy_for(COMMIT_LIMIT)
        lease, runs = drain.lease, self._engine.storage.runs
        write = proposal(
            moment,
            claim_token=drain.token,
            inbox_seq=drain.inbox_seq,
            orphan_ttl=lease.orphan_ttl,
            commit_id=self._engine.ids.token(),
        )
        slot = drain.succession
        asked = None if isinstance(write.schedule, Retain) else slot.ask()
        slot.asked, slot.asked_at = None, drain.monotonic()
        done = drain.within_claim(lambda: runs.commit(lease.scope, write, take=asked))
        slot.taken, slot.heard_at = done.taken, drain.monotonic()
        slot.asked = asked if done.taken is None else None
        drain.moved(done, moment.run.checkpoint_seq)
        return moment

    def _within_budget(self, drain: Drain, moment: Moment) -> tuple[Moment, Boundary | None]:
        """A continuing moment at the boundary narrows to an immediate park; any other disposition stands."""
        config = self._engine.config
        by_count = config.drain_max_moments is not None and drain.committed + 1 >= config.drain_max_moments
        by_time = config.drain_max_elapsed is not None and drain.elapsed >= config.drain_max_elapsed
        boundary: Boundary
        if not isinstance(moment.disposition, Continue):
            return moment, None
        if by_count and by_time:
            boundary = "both"
        elif by_count:
            boundary = "max_moments"
        elif by_time:
            boundary = "max_elapsed"
        elif self._stopping():
            boundary = "stopping"
        else:
            return moment, None
        return moment.yielded("stopping" if boundary == "stopping" else "drain_budget"), boundary

    def _withheld(self, drain: Drain) -> Outcome:
        """No node was allowed to begin, and nothing was executed."""
        if drain.held.lost:
            return self._hand_backs.discard(drain, "the claim was lost while it was renewed")
        if self._stopping():
            return self._hand_backs.release(drain, "the worker is stopping", at_once=True)
        return self._hand_backs.release(drain, "the claim's time does not allow the next node", at_once=True)

    def _beyond_host(self, program: RuntimeGraph) -> str | None:
        allowed = self._engine.config.max_attempt_elapsed
        for node in program.nodes.values():
            if node.timeout is not None and node.timeout > allowed:
                return f"node {node.id!r} may take {node.timeout:g} s; docket_max_attempt_elapsed is {allowed:g} s here"
        return None

    def _stopped(self, drain: Drain, stop: BaseException) -> Outcome:
        """The process is being ended in the middle of good work. One try to give the claim back; counted only for an
        interrupt out of the blue, which a node may have raised itself and would raise for ever.
        """
        reason = f"stopped by {type_name(stop)}"
        counted = isinstance(stop, KeyboardInterrupt) and not self._stopping()
        try:
            self._engine.storage.runs.release_claim(drain.lease.run_id, drain.token, uncounted=not counted)
        except StoreError as error:
            return Unreached(reason=f"{reason}; {message_of(error)}")
        return Released(reason=reason)


def _not_storable(error: BaseException) -> Failure:
    """The failure of a run whose next state the store refuses for good."""
    if isinstance(error, ValueRefused):
        return Failure(code=error.code, message=message_of(error), details={"path": error.path})
    return Failure(code="not_storable", message=message_of(error), error_type=type_name(error))
