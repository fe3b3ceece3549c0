"""Drives one leased run: redeem, load, compile, then propose and commit one moment after the other until it stops.

Holds no connection, transaction or lock while node code runs, and decides nothing by itself: every write is fenced by
the private token it got for the lease and by the checkpoint sequence. A run that contradicts its claim raises
`ClaimInvariant`; the claim's expiry recovers it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal, TypeVar

from docket_celery.engine import Engine
from docket_celery.errors import (
    ClaimInvariant,
    CorruptRecord,
    InvalidCommit,
    NotFound,
    StaleFence,
    StoreUnavailable,
)
from docket_celery.lifecycle import proposal, wake_when_due
from docket_celery.outcomes import (
    Abandoned,
    Deferred,
    Discarded,
    FenceLost,
    HostIncompatible,
    Outcome,
    Parked,
    Released,
)
from docket_celery.program import RuntimeGraph
from docket_celery.programs import Incompatible
from docket_celery.renewal import Held, holding
from docket_celery.run.document import Run
from docket_celery.run.moment import Continue, Moment
from docket_celery.runtime.loop import propose_advance
from docket_celery.runtime.plan import NotDue
from docket_celery.storage.contracts.values import (
    AbandonPolicy,
    Backoff,
    Committed,
    GraphRef,
    Lease,
    Redeemed,
)
from docket_celery.telemetry.hook import DrainFinished, LeaseRefused, MomentCommitted

logger = logging.getLogger("docket_celery")

T = TypeVar("T")

LOAD_LIMIT = 30.0
"""Seconds that loading and compiling may take while the claim is renewed for it."""
COMMIT_LIMIT = 30.0
"""Seconds that a commit may take while the claim is renewed for it."""
FIRST_PAUSE = 0.05
"""Seconds before a store call that could not reach the database is repeated; doubles up to one second."""


@dataclass(slots=True)
class Drain:
    """The state of one drain: the claim, the database clock as last heard, and what has been done so far."""

    lease: Lease
    claim: Redeemed
    monotonic: Callable[[], float]
    held: Held
    heard_now: datetime
    heard_at: float
    started: float
    committed: int = 0

    def now(self) -> datetime:
        """The database clock: the latest reading plus the time that has passed here since."""
        return self.heard_now + timedelta(seconds=self.monotonic() - self.heard_at)

    def hear(self, now: datetime) -> None:
        """Takes a fresh reading of the database clock."""
        self.heard_now, self.heard_at = now, self.monotonic()

    def claim_expires_at(self, ttl: timedelta) -> float:
        """Monotonic seconds at which the claim, last known as refreshed at `claimed_at`, may be stolen."""
        return self.heard_at + (self.claim.claimed_at + ttl - self.heard_now).total_seconds()


class Vehicle:
    """Drains leases for one engine. `stopping` is asked between moments: true means leave in good order."""

    def __init__(self, engine: Engine, *, stopping: Callable[[], bool] = lambda: False) -> None:
        self._engine = engine
        self._stopping = stopping

    def drain(self, lease: Lease) -> Outcome:
        """Drives the lease's run to its next stop and says how it ended."""
        began = self._engine.clock.monotonic()
        token = self._engine.ids.token()
        try:
            claim = self._engine.storage.runs.redeem_claim(lease, token=token)
        except StaleFence as refusal:
            self._engine.hooks(LeaseRefused(run_id=lease.run_id, reason=str(refusal)))
            return FenceLost()
        except CorruptRecord as error:
            return self._abandon(lease, token, lease.checkpoint_seq, str(error))
        with holding(self._engine.renewer, lease.run_id, claim.claim_token, began + LOAD_LIMIT) as held:
            drain = Drain(
                lease=lease,
                claim=claim,
                monotonic=self._engine.clock.monotonic,
                held=held,
                heard_now=claim.now,
                heard_at=self._engine.clock.monotonic(),
                started=began,
            )
            outcome = self._drive(drain)
        self._report(drain, outcome)
        return outcome

    def _drive(self, drain: Drain) -> Outcome:
        lease, run = drain.lease, drain.claim.run
        if run.status.value != "running":
            raise ClaimInvariant(f"claimed run {run.id!r} is {run.status.value}", checkpoint_seq=run.checkpoint_seq)
        try:
            program = self._engine.programs.get(
                lease.scope, GraphRef(graph_id=lease.graph_id, graph_hash=lease.graph_hash)
            )
        except NotFound as error:
            raise ClaimInvariant(
                f"graph {lease.graph_id}@{lease.graph_hash} of claimed run {run.id!r} is missing"
            ) from error
        except StoreUnavailable as error:
            return self._release(drain, str(error))
        if isinstance(program, Incompatible):
            return self._abandon(lease, drain.claim.claim_token, run.checkpoint_seq, program.reason)
        too_long = self._beyond_host(program)
        if too_long is not None:
            return self._push_back(drain, too_long)
        return self._advance(drain, program, run)

    def _advance(self, drain: Drain, program: RuntimeGraph, run: Run) -> Outcome:
        floor: datetime | None = drain.claim.claimed_at
        while True:
            drain.held.until = drain.monotonic() + self._work_limit(program, run)
            proposed = propose_advance(
                program,
                run,
                executor=self._engine.executor,
                now=drain.now,
                fraction=self._engine.jitter.fraction,
                options=self._engine.options,
                resume_floor=floor,
            )
            if isinstance(proposed, NotDue):
                return self._defer(drain, run, proposed.resume_at)
            if not isinstance(proposed, Moment):
                raise ClaimInvariant(f"claimed run {run.id!r} has nothing to execute: {proposed}")
            moment, budget = self._within_budget(drain, proposed)
            try:
                self._commit(drain, moment)
            except StaleFence as refusal:
                self._engine.storage.runs.release_claim(run.id, drain.claim.claim_token)
                return Discarded(reason=str(refusal))
            except (InvalidCommit, NotFound) as error:
                raise ClaimInvariant(f"the commit of claimed run {run.id!r} was rejected: {error}") from error
            self._engine.hooks(MomentCommitted(moment=moment, tenant=drain.lease.tenant))
            if not isinstance(moment.disposition, Continue):
                if moment.disposition.kind == "at":
                    wake_when_due(moment, self._engine.waker, now=drain.now())
                return Parked(kind=moment.disposition.kind, budget=budget)
            run, floor = moment.run, None

    def _commit(self, drain: Drain, moment: Moment) -> None:
        drain.held.until = drain.monotonic() + COMMIT_LIMIT
        write = proposal(moment, drain.claim, orphan_ttl=drain.lease.orphan_ttl, ids=self._engine.ids)
        done = self._persist(drain, lambda: self._engine.storage.runs.commit(drain.lease.scope, write))
        drain.hear(done.now)
        drain.committed += 1
        if done.claimed_at is not None:
            drain.claim = replace(drain.claim, claimed_at=done.claimed_at)

    def _persist(self, drain: Drain, write: Callable[[], Committed]) -> Committed:
        """Repeats a write that could not reach the database, for as long as the claim has time left."""
        pause = FIRST_PAUSE
        while True:
            try:
                return write()
            except StoreUnavailable:
                if drain.monotonic() + pause >= drain.claim_expires_at(drain.lease.orphan_ttl):
                    raise
                logger.warning(
                    "run %s: commit could not reach the database; again in %.2f s", drain.lease.run_id, pause
                )
            self._engine.pause(pause)
            pause = min(pause * 2, 1.0)

    def _within_budget(
        self, drain: Drain, moment: Moment
    ) -> tuple[Moment, Literal["max_moments", "max_elapsed", "both", "stopping"] | None]:
        """A continuing moment at the boundary narrows to an immediate park; any other disposition stands."""
        if not isinstance(moment.disposition, Continue):
            return moment, None
        config = self._engine.config
        by_count = config.drain_max_moments is not None and drain.committed + 1 >= config.drain_max_moments
        elapsed = drain.monotonic() - drain.started
        by_time = config.drain_max_elapsed is not None and elapsed >= config.drain_max_elapsed
        if by_count and by_time:
            return moment.yielded("drain_budget"), "both"
        if by_count:
            return moment.yielded("drain_budget"), "max_moments"
        if by_time:
            return moment.yielded("drain_budget"), "max_elapsed"
        if self._stopping():
            return moment.yielded("stopping"), "stopping"
        return moment, None

    def _work_limit(self, program: RuntimeGraph, run: Run) -> float:
        """Seconds the open superstep may take when its attempts run one after the other."""
        default = self._engine.config.max_attempt_elapsed
        limits = [program.nodes[task.node].timeout or default for task in run.tasks if task.state != "finished"]
        return sum(limits) + COMMIT_LIMIT

    def _beyond_host(self, program: RuntimeGraph) -> str | None:
        allowed = self._engine.config.max_attempt_elapsed
        for node in program.nodes.values():
            if node.timeout is not None and node.timeout > allowed:
                return f"node {node.id!r} may take {node.timeout:g} s; docket_max_attempt_elapsed is {allowed:g} s here"
        return None

    def _abandon(self, lease: Lease, token: str, checkpoint_seq: int, reason: str) -> Outcome:
        base = self._engine.config.abandon_backoff
        delay = base + base * self._engine.jitter.fraction()
        policy = self._hand_back(checkpoint_seq, timedelta(seconds=delay), reason)
        disposition = self._engine.storage.runs.abandon_claim(lease.run_id, token, policy)
        logger.warning("run %s was handed back (%s): %s", lease.run_id, disposition, reason)
        return Abandoned(disposition=disposition, reason=reason)

    def _push_back(self, drain: Drain, reason: str) -> Outcome:
        config = self._engine.config
        base, cap = timedelta(seconds=config.abandon_backoff), timedelta(seconds=config.abandon_backoff_cap)
        policy = self._hand_back(drain.claim.run.checkpoint_seq, base, reason)
        policy = replace(policy, poisoning=False, backoff=Backoff(base=base, cap=cap))
        token = drain.claim.claim_token
        if self._engine.storage.runs.abandon_claim(drain.lease.run_id, token, policy) == "stale":
            return FenceLost()
        return HostIncompatible(reason=reason)

    def _defer(self, drain: Drain, run: Run, resume_at: datetime) -> Outcome:
        delay = max(resume_at - drain.now(), timedelta(0))
        policy = self._hand_back(run.checkpoint_seq, delay, f"nothing is due before {resume_at.isoformat()}")
        return Deferred(disposition=self._engine.storage.runs.abandon_claim(run.id, drain.claim.claim_token, policy))

    def _hand_back(self, checkpoint_seq: int, delay: timedelta, reason: str) -> AbandonPolicy:
        return AbandonPolicy(
            expected_checkpoint_seq=checkpoint_seq,
            delay=delay,
            max_claim_abandons=self._engine.config.max_claim_abandons,
            reason=reason,
        )

    def _release(self, drain: Drain, reason: str) -> Outcome:
        delay = timedelta(seconds=1.0 + self._engine.jitter.fraction())
        self._engine.storage.runs.release_claim(
            drain.lease.run_id, drain.claim.claim_token, uncounted=True, delay=delay
        )
        return Released(reason=reason)

    def _report(self, drain: Drain, outcome: Outcome) -> None:
        """One fact and one log line per drain."""
        elapsed = max(drain.monotonic() - drain.started, 0.0)
        held = max((drain.now() - drain.lease.claimed_at).total_seconds(), 0.0)
        lease = drain.lease
        self._engine.hooks(
            DrainFinished(
                run_id=lease.run_id,
                graph_id=lease.graph_id,
                claim_attempt=drain.claim.claim_attempt,
                outcome=str(outcome),
                committed_moments=drain.committed,
                elapsed=elapsed,
                claim_held=held,
                budget=outcome.budget if isinstance(outcome, Parked) else None,
            )
        )
        logger.info(
            "run=%s graph=%s attempt=%d moments=%d elapsed=%.3f outcome=%s",
            lease.run_id,
            lease.graph_id,
            drain.claim.claim_attempt,
            drain.committed,
            elapsed,
            outcome,
        )
