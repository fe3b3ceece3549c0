"""Drives one leased run: redeem, load, compile, let it advance to its next stop, and report how that went.

What happens between two commits is in `moments`. A run that contradicts its claim raises `ClaimInvariant`; the claim's
expiry recovers it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from docket_celery.engine import Engine
from docket_celery.errors import ClaimInvariant, CorruptRecord, NotFound, StaleFence, StoreError, StoreUnavailable
from docket_celery.program import RuntimeGraph
from docket_celery.programs import Incompatible
from docket_celery.renewal import holding
from docket_celery.run.document import Run, RunStatus
from docket_celery.runtime.failures import message_of, type_name
from docket_celery.storage.contracts.claims import Lease, Redeemed
from docket_celery.storage.contracts.taking import Taken
from docket_celery.storage.contracts.values import GraphRef
from docket_celery.telemetry.hook import LeaseRefused
from docket_celery.vehicle.drain import Drain
from docket_celery.vehicle.handbacks import HandBacks
from docket_celery.vehicle.moments import Moments
from docket_celery.vehicle.outcomes import FenceLost, Outcome, Released, Unreached
from docket_celery.vehicle.report import report_crash, report_end
from docket_celery.vehicle.succession import Succession

LOAD_LIMIT: Final = 30.0
"""Seconds that loading and compiling may take while the claim is renewed for it."""
ENDING: Final = 1.0
"""Seconds beyond a deadline that belong to it: the clean-up of an interrupted node. After that a vehicle is hung."""
TOO_LATE: Final = "its slot did not get to it in time"


class Vehicle:
    """Drains leases for one engine. `stopping` is asked between moments: true means leave in good order."""

    def __init__(self, engine: Engine, *, stopping: Callable[[], bool] = lambda: False) -> None:
        self._engine = engine
        self._stopping = stopping
        self._hand_backs = HandBacks(engine)
        self._moments = Moments(engine, self._hand_backs, stopping=stopping)

    def drain(self, lease: Lease, succession: Succession | None = None) -> Outcome:
        """Drives the lease's run to its next stop and says how it ended. The commit that stops it may bring along the
        next run of the slot: see `Succession`.

        Raises what it did not foresee, `ClaimInvariant` above all: the claim is then left to expire. An interrupt or
        exit that ends the process passes through as well, once the claim is given back. But a vehicle that is past its
        deadline by then has hung, and was ended for it: its claim is left to expire too, so that the launch counts and
        a run that hangs each time is poisoned in the end.
        """
        drain = self._new_drain(lease, self._engine.ids.token(), self._engine.clock.monotonic(), succession)
        return self._to_its_end(drain, lambda: self._redeem(drain))

    def drive(
        self, taken: Taken, *, asked_at: float, heard_at: float | None = None, succession: Succession | None = None
    ) -> Outcome:
        """The same for a run that was taken: claimed and redeemed in one.

        asked_at  when it was asked for, in monotonic seconds
        heard_at  when the answer came; None is now

        A run that was asked for more than a third of its TTL ago is given back without being begun, since nothing has
        renewed its claim. `ValueError` where no run was taken.
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
        return self._moments.advance(drain, program, run)

    def _beyond_host(self, program: RuntimeGraph) -> str | None:
        allowed = self._engine.config.max_attempt_elapsed
        for node in program.nodes.values():
            if node.timeout is not None and node.timeout > allowed:
                return f"node {node.id!r} may take {node.timeout:g} s; docket_max_attempt_elapsed is {allowed:g} s here"
        return None

    def _stopped(self, drain: Drain, stop: BaseException) -> Outcome:
        """The process is told to end while its vehicle is well: one try to give the claim back. The launch counts only
        after a `KeyboardInterrupt` that no stop of the worker explains: a node may have raised it, and would again.
        """
        reason = f"stopped by {type_name(stop)}"
        counted = isinstance(stop, KeyboardInterrupt) and not self._stopping()
        try:
            self._engine.storage.runs.release_claim(drain.lease.run_id, drain.token, uncounted=not counted)
        except StoreError as error:
            return Unreached(reason=f"{reason}; {message_of(error)}")
        return Released(reason=reason)
