"""Taking a run in PostgreSQL: one statement for the common case, by itself or with the commit that frees the slot."""

from __future__ import annotations

import time

from psycopg.rows import DictRow

from docket_celery.storage.contracts.claims import ClaimPolicy
from docket_celery.storage.contracts.taking import Taken, TakeRequest, take_in_two
from docket_celery.storage.postgres.claims import PostgresClaims
from docket_celery.storage.postgres.horizon import EVERYTHING
from docket_celery.storage.postgres.parameters import bounded
from docket_celery.storage.postgres.rows import taken_of
from docket_celery.storage.postgres.sessions import Session
from docket_celery.storage.postgres.short_look import ShortLook, short_look


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
            if before is not None:
                return before
            row = self._database.execute(session, "take_ready", look.parameters).fetchone()
            return None if row is None else self._taken(row, look)

        return self._database.run(take)

    def _short_look(self, request: TakeRequest) -> ShortLook | None:
        """A look that can begin now; None for the turns of tenants, and when a full look is due."""
        policy = request.policy
        pinned = policy.now or self._database.now()
        horizon = EVERYTHING if pinned is not None else self._outlook.begin(time.monotonic())
        if policy.order != "age" or (horizon is EVERYTHING and pinned is None):
            return None
        return short_look(request, horizon, now=pinned)

    def _taken_before(self, session: Session, request: TakeRequest) -> Taken | None:
        """What was taken under the token already, by a statement whose reply was lost."""
        policy = request.policy
        parameters = {
            "now": policy.now or self._database.now(),
            "token": request.token,
            "ttl": bounded(policy.orphan_ttl),
        }
        row = self._database.execute(session, "taken_before", parameters).fetchone()
        return None if row is None else taken_of(row, request)

    def _taken(self, row: DictRow, look: ShortLook) -> Taken:
        """What a short look has taken; leaves a new outlook."""
        if look.parameters["now"] is None:
            self._outlook = self._outlook.after(row, look.horizon, look.began, time.monotonic())
        return taken_of(row, look.request)
