"""Claims due runs: hands the leases to whoever launches vehicles, or takes one run for a slot that asks.

Never runs a node, never reads the broker: how much to hand out is judged in the claim itself, against the slots that
live workers registered and the claims that are out.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Literal, Protocol

from msgspec.structs import replace

from docket_celery.engine import Engine
from docket_celery.errors import StoreError
from docket_celery.storage.contracts.claims import ClaimBatch, ClaimPolicy, Demand, Lease
from docket_celery.storage.contracts.taking import Taken, TakeRequest
from docket_celery.telemetry.hook import LeasesGranted, RunsPoisoned

logger = logging.getLogger("docket_celery")

LARGEST_BATCH = 500
"""Leases of one scan; what is due beyond it waits for the next."""
MOST_REPEATS = 100
"""Scans in a row that may find nothing but exhausted runs before the next tick goes on."""


class Launch(Protocol):
    """Starts vehicles elsewhere."""

    def __call__(self, leases: Sequence[Lease]) -> int:
        """Publishes the leases in order and returns how many went out; stops at the first that does not.

        Leases that are sent in one exchange count only if all of them went out: to give back one that did is harmless.
        """
        ...


class Dispatcher:
    """Scans for one engine."""

    def __init__(self, engine: Engine, launch: Launch) -> None:
        self._engine = engine
        self._launch = launch
        self._preferences: Iterator[Literal["ready", "expired"]] = itertools.cycle(("ready", "expired"))

    def tick(self) -> ClaimBatch:
        """One periodic scan. Ends in one statement when another scan has just run, or nothing is due."""
        return self._dispatch(self._policy(LARGEST_BATCH, "tick"))

    def nudge(self) -> ClaimBatch:
        """One scan out of turn, for work that has just become due. The first lease is not published, since the calling
        slot works on it; the others have gone out when this returns, or are given back.
        """
        return self._dispatch(self._policy(LARGEST_BATCH, "nudge"), own=1)

    def take_alone(self) -> Taken | None:
        """Takes the one run that is due for the slot that a nudge has reached. None where the slot has to scan instead,
        as `RunStore.take_alone` says. Hooks and log are left to the caller, who begins the run at once.
        """
        taken = self._engine.storage.runs.take_alone(self._policy(1, "refill"), token=self._engine.ids.token())
        if taken is not None:
            self._wake_in_time(taken.batch)
        return taken

    def hand_on(self, request: TakeRequest | None = None) -> ClaimBatch:
        """Claims at most one run and publishes its lease, for the slot that the calling vehicle is about to free.
        `request` is as for `refill`.
        """
        return self._dispatch(self._single() if request is None else request.policy)

    def pass_on(self, came: Taken) -> None:
        """Publishes the lease that came along with a commit, for the slot that the commit has freed."""
        self.tell(came.batch)
        self._publish(came.batch.leases)

    def refill(self, request: TakeRequest | None = None) -> Taken | None:
        """Takes one due run for the calling vehicle's own slot; classes take turns. None when nothing is due. As with
        `take_alone`, telling hooks and log of the run is left to the caller.

        `request` is one that a commit has carried in vain: the class that it prefers still has its turn.
        """
        request = request or self.request()
        for _ in range(MOST_REPEATS):
            taken = self._engine.storage.runs.take_due(request.policy, token=request.token)
            if taken.claim is not None:
                return taken
            self.tell(taken.batch)
            if not taken.batch.poisoned:
                break
        return None

    def request(self, *, redeem: bool = True) -> TakeRequest:
        """What a refill asks for, so that a vehicle can ask it along with a commit; without `redeem`, what handing on
        asks for.
        """
        return TakeRequest(policy=self._single(), token=self._engine.ids.token(), redeem=redeem)

    def tell(self, batch: ClaimBatch) -> None:
        """Tells hooks and log what a scan came to."""
        if batch.leases:
            granted = LeasesGranted(leases=len(batch.leases), stolen=batch.stolen, reissued=batch.reissued)
            self._engine.hooks(granted)
        if batch.poisoned:
            self._engine.hooks(RunsPoisoned(run_ids=tuple(poisoned.run_id for poisoned in batch.poisoned)))
            for poisoned in batch.poisoned:
                logger.error("run=%s outcome=poisoned: %s", poisoned.run_id, poisoned.poison_reason)

    def _single(self) -> ClaimPolicy:
        return self._policy(1, "refill", next(self._preferences))

    def _policy(
        self,
        limit: int,
        gate: Literal["tick", "nudge", "refill"],
        preference: Literal["ready", "expired"] | None = None,
    ) -> ClaimPolicy:
        config = self._engine.config
        slots = None if config.max_in_flight == "auto" else config.max_in_flight
        return ClaimPolicy(
            limit=limit,
            orphan_ttl=self._engine.orphan_ttl,
            max_claim_attempts=config.max_claim_attempts,
            preference=preference,
            demand=Demand(gate=gate, slots=slots, interval=timedelta(seconds=config.poll_interval)),
            order=config.claim_policy or "age",
            fraction=self._engine.jitter.fraction(),
            tenant_cap=config.tenant_cap,
        )

    def _dispatch(self, policy: ClaimPolicy, *, own: int = 0) -> ClaimBatch:
        """One scan. Its leases go out, but for the first `own`; those that could not are given back."""
        batch = self._scan(policy)
        self._wake_in_time(batch)
        self._publish(batch.leases, own=own)
        return batch

    def _publish(self, leases: Sequence[Lease], *, own: int = 0) -> None:
        """Lets all go out but the first `own`. Those that could not are given back, and all of them when the process is
        ended meanwhile.
        """
        others = leases[own:]
        try:
            launched = self._launch(others) if others else 0
        except BaseException:
            self._give_back(leases)
            raise
        self._give_back(others[launched:])

    def _wake_in_time(self, batch: ClaimBatch) -> None:
        """Asks for a nudge at the next wake, for which the next tick may be too late."""
        if batch.next_wake_at is not None:
            self._engine.waker.wake(after=(batch.next_wake_at - batch.now).total_seconds())

    def _give_back(self, leases: Sequence[Lease]) -> None:
        """Releases leases that did not go out. Where even that fails they are handed out again once they expire."""
        if not leases:
            return
        try:
            self._engine.storage.runs.release_claims([(lease.run_id, lease.claim_token) for lease in leases])
            logger.warning("%d leases could not be published and were given back", len(leases))
        except StoreError:
            logger.warning("%d leases could be neither published nor given back", len(leases), exc_info=True)

    def _scan(self, policy: ClaimPolicy) -> ClaimBatch:
        """Claims, and claims again while a scan met nothing but exhausted runs."""
        for _ in range(MOST_REPEATS):
            batch = self._engine.storage.runs.claim_due(policy)
            self.tell(batch)
            if batch.leases or not batch.poisoned:
                break
            if policy.demand is not None and policy.demand.gate == "tick":
                policy = replace(policy, demand=replace(policy.demand, gate="nudge"))
        return batch
