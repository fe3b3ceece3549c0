"""The ways in which a vehicle gives a claim back without having committed its end.

Each is fenced by the vehicle's own token, so it can never disturb whoever has the run by then, and each is repeated
while the database cannot be reached and the claim has time left; after that `StoreUnavailable` is raised and the
claim's expiry does the rest.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from msgspec.structs import replace

from docket_celery.engine import Engine
from docket_celery.storage.contracts.claims import AbandonDisposition, AbandonPolicy, Backoff
from docket_celery.telemetry.hook import RunsPoisoned
from docket_celery.vehicle.drain import Drain
from docket_celery.vehicle.outcomes import Abandoned, Deferred, Discarded, FenceLost, HostIncompatible, Released

logger = logging.getLogger("docket_celery")

HAND_BACK_LIMIT = 30.0
"""Seconds that handing back may take while the claim is renewed for it."""
AT_ONCE = timedelta(0)


class HandBacks:
    """Gives claims back for one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def abandon(self, drain: Drain, reason: str) -> Abandoned:
        """This process cannot decode or compile the run: one abandon more, and a jittered wait of one to two backoffs.

        Poisons the run when its abandons are used up.
        """
        base = self._engine.config.abandon_backoff
        delay = timedelta(seconds=base + base * self._engine.jitter.fraction())
        disposition = self._abandoned(drain, self._policy(drain, delay, reason))
        logger.warning("run %s was handed back (%s): %s", drain.lease.run_id, disposition, reason)
        return Abandoned(disposition=disposition, reason=reason)

    def push_back(self, drain: Drain, reason: str) -> HostIncompatible | FenceLost:
        """This host's limits do not fit: the wait doubles with each abandon up to a cap, and nothing is poisoned."""
        config = self._engine.config
        base, cap = timedelta(seconds=config.abandon_backoff), timedelta(seconds=config.abandon_backoff_cap)
        policy = replace(self._policy(drain, base, reason), poisoning=False, backoff=Backoff(base=base, cap=cap))
        if self._abandoned(drain, policy) == "stale":
            return FenceLost()
        logger.warning("run %s was pushed back: %s", drain.lease.run_id, reason)
        return HostIncompatible(reason=reason)

    def defer(self, drain: Drain, resume_at: datetime) -> Deferred:
        """Nothing is due before `resume_at`: the run is woken then, or now if that has passed."""
        delay = max(resume_at - drain.now(), AT_ONCE)
        policy = self._policy(drain, delay, f"nothing is due before {resume_at.isoformat()}")
        return Deferred(disposition=self._abandoned(drain, policy))

    def release(self, drain: Drain, reason: str, *, at_once: bool = False) -> Released:
        """A passing obstacle: uncounted, and tried again at once or after one to two seconds."""
        delay = AT_ONCE if at_once else timedelta(seconds=1.0 + self._engine.jitter.fraction())
        drain.busy_for(HAND_BACK_LIMIT)
        runs, lease = self._engine.storage.runs, drain.lease
        drain.within_claim(lambda: runs.release_claim(lease.run_id, drain.token, uncounted=True, delay=delay))
        logger.info("run %s was given back: %s", lease.run_id, reason)
        return Released(reason=reason)

    def discard(self, drain: Drain, reason: str) -> Discarded:
        """The fence is gone. Releasing under our own token then changes nothing, unless only the sequence moved."""
        drain.busy_for(HAND_BACK_LIMIT)
        drain.within_claim(lambda: self._engine.storage.runs.release_claim(drain.lease.run_id, drain.token))
        return Discarded(reason=reason)

    def _abandoned(self, drain: Drain, policy: AbandonPolicy) -> AbandonDisposition:
        drain.busy_for(HAND_BACK_LIMIT)
        runs = self._engine.storage.runs
        disposition = drain.within_claim(lambda: runs.abandon_claim(drain.lease.run_id, drain.token, policy))
        if disposition == "poisoned":
            self._engine.hooks(RunsPoisoned(run_ids=(drain.lease.run_id,)))
            lease, attempt = drain.lease, drain.claim_attempt
            line = "run=%s graph=%s attempt=%d outcome=poisoned by its last hand-back: %s"
            logger.error(line, lease.run_id, lease.graph_id, attempt, policy.reason)
        return disposition

    def _policy(self, drain: Drain, delay: timedelta, reason: str) -> AbandonPolicy:
        return AbandonPolicy(
            expected_checkpoint_seq=drain.checkpoint_seq,
            delay=delay,
            max_claim_abandons=self._engine.config.max_claim_abandons,
            reason=reason,
        )
