"""Taking a run in PostgreSQL: one statement for the common case, by itself or with the commit that frees the slot."""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec.structs import replace
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
    """`take_due` and `take_alone` of `RunStore`, and what a commit needs to take a run along."""

    def take_due(self, policy: ClaimPolicy, *, token: str) -> Taken:
        look = self._short_look(TakeRequest(policy=policy, token=token))
        # The short look finds nothing below the horizon, and leaves whatever takes a decision to the full scan.
        taken = None if look is None else self._take("take_ready", look, self._taken)
        return taken or take_in_two(self, policy, token)

    def take_alone(self, policy: ClaimPolicy, *, token: str) -> Taken | None:
        if policy.order != "age":
            return None
        now = policy.now or self._database.now()
        look = short_look(TakeRequest(policy=policy, token=token), EVERYTHING, now=now)
        return self._take("take_alone", look, _taken_alone)

    def _take(self, statement: str, look: ShortLook, made_of: Callable[[DictRow, ShortLook], Taken]) -> Taken | None:
        """What `made_of` makes of the row that the statement takes; None when it takes none."""

        def take(session: Session, again: bool) -> Taken | None:
            # After a lost reply there may be a run that was taken already.
            before = self._taken_before(session, look.request) if again else None
            if before is not None:
                return before
            row = self._database.execute(session, statement, look.parameters).fetchone()
            return None if row is None else made_of(row, look)

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


def _taken_alone(row: DictRow, look: ShortLook) -> Taken:
    """The run that was taken alone. It leaves no new outlook: its statement has not looked where the claims begin."""
    taken = taken_of(row, look.request)
    return replace(taken, batch=replace(taken.batch, next_wake_at=row["next_wake_at"]))
