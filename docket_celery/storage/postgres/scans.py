"""Handing runs out in PostgreSQL: one scan claims what is due. Never decides from a run's document."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from msgspec.structs import replace
from psycopg import errors
from psycopg.rows import DictRow

from docket_celery.storage.contracts.claims import ClaimBatch, ClaimPolicy, PoisonedClaim
from docket_celery.storage.contracts.rules import MAX_ATTEMPTS_REASON
from docket_celery.storage.postgres.database import Database
from docket_celery.storage.postgres.horizon import EVERYTHING, Horizon, Outlook
from docket_celery.storage.postgres.parameters import bounded
from docket_celery.storage.postgres.rows import lease_of
from docket_celery.storage.postgres.sessions import Session

_GATE_TIMEOUT: Final = "500ms"
"""How long a nudge waits for a running scan."""
_GATE_IDLE_TIMEOUT: Final = "5s"
"""After which the server ends a nudge whose process was frozen while it held the gate."""
_SCAN_ROUNDS: Final = 8
"""How often one claim looks at the tenants when rivals hold what it found."""
_GOLDEN_RATIO: Final = 0.618_033_988_75
"""Steps of this share of the ring come near every place of it soon."""


class PostgresScans:
    """`claim_due` of `RunStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._outlook = Outlook()

    def claim_due(self, policy: ClaimPolicy) -> ClaimBatch:
        demand = policy.demand
        parameters = {
            "now": policy.now or self._database.now(),
            "gate": "open" if demand is None else demand.gate,
            "token": None,
            "demanded": demand is not None,
            "interval": timedelta(0) if demand is None else bounded(demand.interval),
            "slots": None if demand is None else demand.slots,
            "limit": policy.limit,
            "ttl": bounded(policy.orphan_ttl),
            "max_attempts": policy.max_claim_attempts,
            "delivery": policy.delivery,
            "preference": policy.preference,
            "poison_reason": MAX_ATTEMPTS_REASON,
            "fraction": policy.fraction,
            "cap": policy.tenant_cap,
        }
        batch, passed_by = self._scan(policy, parameters)
        for number in range(1, _SCAN_ROUNDS):
            if not passed_by:
                break
            # Rivals held all that was to be this scan's, while others may be due: it looks again, from elsewhere.
            parameters["fraction"] = (policy.fraction + number * _GOLDEN_RATIO) % 1
            if parameters["gate"] == "tick":
                parameters["gate"] = "nudge"
            again, passed_by = self._scan(policy, parameters)
            batch = replace(again, scanned=batch.scanned)
        return batch

    def _scan(self, policy: ClaimPolicy, parameters: dict[str, Any]) -> tuple[ClaimBatch, bool]:
        """One scan's outcomes, and whether it has none only because rivals were in its way."""
        statement = "claim_due_by_tenant" if policy.order == "tenants" else "claim_due"
        gate, short = parameters["gate"], _is_short(policy)
        if gate in ("tick", "nudge") or parameters["now"] is not None:
            # These find everything. An instant on a pinned clock says nothing about the next one.
            rows = self._find(statement, parameters, EVERYTHING, short=short)
        else:
            horizon = self._outlook.begin(time.monotonic())
            rows = self._find(statement, parameters, horizon, short=short and horizon is not EVERYTHING)
            found_nothing = rows[0]["id"] is None and rows[0]["ready_from"] is not None
            worth_it = gate == "open" or self._outlook.allows_second_look(time.monotonic())
            if horizon is not EVERYTHING and found_nothing and worth_it:
                rows = self._look(statement, parameters, EVERYTHING)
        if not rows:
            (clock,) = self._database.read("clock", {"now": parameters["now"]})
            return ClaimBatch(leases=(), poisoned=(), now=clock["now"], scanned=False), False
        return _batch(rows, policy), rows[0]["id"] is None and rows[0]["passed_by"]

    def _find(self, statement: str, parameters: dict[str, Any], horizon: Horizon, *, short: bool) -> list[DictRow]:
        """As `_look`; if `short`, by the short statement first, which may leave the decision to the long one."""
        rows = self._look("lease_ready", parameters, horizon) if short else []
        return rows if rows and rows[0]["scanned"] else self._look(statement, parameters, horizon)

    def _look(self, statement: str, parameters: dict[str, Any], horizon: Horizon) -> list[DictRow]:
        """The rows of one scan from `horizon` on; none when a nudge found the gate held. Leaves a new outlook."""
        began = time.monotonic()
        given = {**parameters, "ready_from": horizon.ready_from, "claimed_from": horizon.claimed_from}
        look = self._nudge if parameters["gate"] == "nudge" else self._database.read
        rows = look(statement, given)
        if rows and rows[0]["scanned"] and parameters["now"] is None:
            self._outlook = self._outlook.after(rows[0], horizon, began, time.monotonic())
        return rows

    def _nudge(self, statement: str, parameters: dict[str, Any]) -> list[DictRow]:
        """The rows of one scan behind the gate; none when the gate did not open in time.

        One exchange where no scan is under way: as a tick, which goes through an open gate and passes by a shut one.
        """
        at_once = {**parameters, "gate": "tick", "interval": timedelta(0)}
        rows = self._database.read(statement, at_once)
        if rows[0]["scanned"]:
            return rows
        return self._database.run(lambda session, _: self._wait(session, statement, parameters))

    def _wait(self, session: Session, statement: str, parameters: dict[str, Any]) -> list[DictRow]:
        """The same, after a scan that is under way."""
        try:
            with session.transaction():
                bounds = {"lock": _GATE_TIMEOUT, "idle": _GATE_IDLE_TIMEOUT}
                self._database.execute(session, "claim_gate", bounds)
                return self._database.execute(session, statement, parameters).fetchall()
        except errors.LockNotAvailable:
            return []


def _is_short(policy: ClaimPolicy) -> bool:
    """Whether the scan is for one lease in the order of age, and waits at no gate."""
    gated = policy.demand is not None and policy.demand.gate != "refill"
    return policy.limit == 1 and policy.delivery == "lease" and policy.order == "age" and not gated


def _batch(rows: Sequence[DictRow], policy: ClaimPolicy) -> ClaimBatch:
    """The scan's outcomes; a scan without any is one row that tells the time."""
    taken = [row for row in rows if row["id"] is not None]
    leased = [row for row in taken if not row["exhausted"]]
    return ClaimBatch(
        leases=tuple(lease_of(row, policy) for row in leased),
        poisoned=tuple(
            PoisonedClaim(run_id=row["id"], poisoned_at=row["now"], poison_reason=MAX_ATTEMPTS_REASON)
            for row in taken
            if row["exhausted"]
        ),
        now=rows[0]["now"],
        stolen=sum(row["class"] == "expired" and not row["unredeemed"] for row in leased),
        reissued=sum(row["unredeemed"] for row in leased),
        scanned=rows[0]["scanned"],
        next_wake_at=rows[0]["next_wake_at"],
    )
