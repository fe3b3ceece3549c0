"""Taking a run in PostgreSQL: one statement for the common case, by itself or with the commit that frees the slot."""

from __future__ import annotations

import time

from psycopg.rows import DictRow

from docket_celery.errors import CorruptRecord
from docket_celery.storage.contracts.claims import ClaimBatch, ClaimPolicy, Redeemed
from docket_celery.storage.contracts.taking import Taken, TakeRequest, take_in_two
from docket_celery.storage.postgres.claims import PostgresClaims
from docket_celery.storage.postgres.horizon import EVERYTHING
from docket_celery.storage.postgres.parameters import array, bounded
from docket_celery.storage.postgres.rows import lease_of, redeemed_of
from docket_celery.storage.postgres.sessions import Session
from docket_celery.storage.postgres.short_look import ShortLook


class PostgresTaking(PostgresClaims):
    """`take_due` of `RunStore`, and what a commit needs to take a run along."""

    def take_due(self, policy: ClaimPolicy, *, token: str) -> Taken:
        return self._take_ready(TakeRequest(policy=policy, token=token)) or take_in_two(self, policy, token)

    def _take_ready(self, request: TakeRequest) -> Taken | None:
        """The longest ready run, in one statement; None when there is none above the horizon, or more to weigh."""
        look = self._short_look(request)
        if look is None:
            return None

        def take(session: Session, again: bool) -> Taken | None:
            # After a lost reply there may be a run that was taken already.
            before = self._taken_before(session, request) if again else None
            return before or self._taken(
                self._database.execute(session, "take_ready", look.parameters).fetchone(), look
            )

        return self._database.run(take)

    def _short_look(self, request: TakeRequest, *, leaving: str | None = None) -> ShortLook | None:
        """A look that can begin now; None for the turns of tenants, and when a full look is due. `leaving` is the run
        whose claim the same statement gives up.
        """
        policy = request.policy
        pinned = policy.now or self._database.now()
        horizon = EVERYTHING if pinned is not None else self._outlook.begin(time.monotonic())
        if policy.order != "age" or (horizon is EVERYTHING and pinned is None):
            return None
        parameters = {
            "now": pinned,
            "token": request.token,
            "demanded": policy.demand is not None,
            "slots": None if policy.demand is None else policy.demand.slots,
            "ttl": bounded(policy.orphan_ttl),
            "max_attempts": policy.max_claim_attempts,
            "preference": policy.preference,
            "ready_from": horizon.ready_from,
            "claimed_from": horizon.claimed_from,
            "leaving": array(() if leaving is None else (leaving,)),
        }
        return ShortLook(request=request, horizon=horizon, parameters=parameters)

    def _taken_before(self, session: Session, request: TakeRequest) -> Taken | None:
        """What was taken under the token already, by a statement whose reply was lost."""
        policy = request.policy
        parameters = {
            "now": policy.now or self._database.now(),
            "token": request.token,
            "ttl": bounded(policy.orphan_ttl),
        }
        return _taken(self._database.execute(session, "taken_before", parameters).fetchone(), request)

    def _taken(self, row: DictRow | None, look: ShortLook) -> Taken | None:
        """What a short look has taken, None without a row; leaves a new outlook."""
        if row is not None and look.parameters["now"] is None:
            self._outlook = self._outlook.after(row, look.horizon, look.began, time.monotonic())
        return _taken(row, look.request)


def _taken(row: DictRow | None, request: TakeRequest) -> Taken | None:
    if row is None:
        return None
    batch = ClaimBatch(leases=(lease_of(row, request.policy),), poisoned=(), now=row["now"])
    if not request.redeem:
        return Taken(batch=batch)
    claim: Redeemed | CorruptRecord
    try:
        claim = redeemed_of(row, request.token)
    except CorruptRecord as error:
        claim = error
    return Taken(batch=batch, claim=claim)
