"""Waking a slot in PostgreSQL: a nudge that is about one run alone takes it in one statement."""

from __future__ import annotations

from dataclasses import replace

from docket_celery.storage.contracts.claims import ClaimPolicy
from docket_celery.storage.contracts.taking import Taken, TakeRequest
from docket_celery.storage.postgres.horizon import EVERYTHING
from docket_celery.storage.postgres.parameters import array, bounded
from docket_celery.storage.postgres.sessions import Session
from docket_celery.storage.postgres.short_look import ShortLook
from docket_celery.storage.postgres.taking import PostgresTaking


class PostgresWaking(PostgresTaking):
    """`take_alone` of `RunStore`."""

    def take_alone(self, policy: ClaimPolicy, *, token: str) -> Taken | None:
        if policy.order != "age":
            return None
        parameters = {
            "now": policy.now or self._database.now(),
            "token": token,
            "demanded": policy.demand is not None,
            "slots": None if policy.demand is None else policy.demand.slots,
            "ttl": bounded(policy.orphan_ttl),
            "max_attempts": policy.max_claim_attempts,
            "ready_from": None,
            "claimed_from": None,
            "leaving": array(()),
        }
        look = ShortLook(request=TakeRequest(policy=policy, token=token), horizon=EVERYTHING, parameters=parameters)

        def take(session: Session, again: bool) -> Taken | None:
            # After a lost reply there may be a run that was taken already.
            before = self._taken_before(session, look.request) if again else None
            if before is not None:
                return before
            row = self._database.execute(session, "take_alone", look.parameters).fetchone()
            taken = self._taken(row, look)
            if row is None or taken is None:
                return None
            return replace(taken, batch=replace(taken.batch, next_wake_at=row["next_wake_at"]))

        return self._database.run(take)
