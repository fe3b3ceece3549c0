"""Waking a slot in PostgreSQL: a nudge that is about one run alone takes it in one statement."""

from __future__ import annotations

from msgspec.structs import replace

from docket_celery.storage.contracts.claims import ClaimPolicy
from docket_celery.storage.contracts.taking import Taken, TakeRequest
from docket_celery.storage.postgres.horizon import EVERYTHING
from docket_celery.storage.postgres.rows import taken_of
from docket_celery.storage.postgres.sessions import Session
from docket_celery.storage.postgres.short_look import short_look
from docket_celery.storage.postgres.taking import PostgresTaking


class PostgresWaking(PostgresTaking):
    """`take_alone` of `RunStore`."""

    def take_alone(self, policy: ClaimPolicy, *, token: str) -> Taken | None:
        if policy.order != "age":
            return None
        request = TakeRequest(policy=policy, token=token)
        look = short_look(request, EVERYTHING, now=policy.now or self._database.now())

        def take(session: Session, again: bool) -> Taken | None:
            # After a lost reply there may be a run that was taken already.
            before = self._taken_before(session, request) if again else None
            if before is not None:
                return before
            row = self._database.execute(session, "take_alone", look.parameters).fetchone()
            if row is None:
                return None
            # No new outlook: where the claims begin it has not looked for.
            taken = taken_of(row, request)
            return replace(taken, batch=replace(taken.batch, next_wake_at=row["next_wake_at"]))

        return self._database.run(take)
