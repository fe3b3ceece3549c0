"""Claims in PostgreSQL: handing out, redeeming, keeping alive, giving back. Never decides from a run's document."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from psycopg import errors
from psycopg.rows import DictRow

from docket_celery.errors import ClaimLost, NotFound, StaleFence
from docket_celery.run.document import JsonValue
from docket_celery.storage.contracts.claims import (
    AbandonDisposition,
    AbandonPolicy,
    ClaimBatch,
    ClaimPolicy,
    Lease,
    PoisonedClaim,
    Redeemed,
)
from docket_celery.storage.contracts.rules import MAX_ABANDONS_REASON, MAX_ATTEMPTS_REASON
from docket_celery.storage.postgres.database import Database
from docket_celery.storage.postgres.horizon import EVERYTHING, Horizon, Outlook
from docket_celery.storage.postgres.parameters import array, bounded, named
from docket_celery.storage.postgres.rows import run_of, tenant_of, values_of
from docket_celery.storage.postgres.sessions import Session

_GATE_TIMEOUT: Final = "500ms"
"""How long a nudge waits for a running scan."""
_GATE_IDLE_TIMEOUT: Final = "5s"
"""After which the server ends a nudge whose process was frozen while it held the gate."""
_SCAN_ROUNDS: Final = 8
"""How often one claim looks at the tenants when rivals hold what it found."""
_GOLDEN_RATIO: Final = 0.618_033_988_75
"""Steps of this share of the ring come near every place of it soon."""
_LONGEST_REASON: Final = 2_000


class PostgresClaims:
    """The claim operations of `RunStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._outlook = Outlook()

    def claim_due(self, policy: ClaimPolicy) -> ClaimBatch:
        demand = policy.demand
        parameters = {
            "now": policy.now or self._database.now(),
            "gate": "open" if demand is None else demand.gate,
            "demanded": demand is not None,
            "leaving": None,
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
        if parameters["gate"] == "nudge":
            rows = self._database.run(lambda session, _: self._nudge(session, statement, given))
        else:
            rows = self._database.read(statement, given)
        if rows and rows[0]["scanned"] and parameters["now"] is None:
            self._outlook = self._outlook.after(rows[0], horizon, began, time.monotonic())
        return rows

    def _nudge(self, session: Session, statement: str, parameters: dict[str, Any]) -> list[DictRow]:
        """The rows of one scan behind the gate; none when the gate did not open in time."""
        try:
            with session.transaction():
                bounds = {"lock": _GATE_TIMEOUT, "idle": _GATE_IDLE_TIMEOUT}
                self._database.execute(session, "bound_transaction", bounds)
                self._database.execute(session, "claim_gate", {})
                return self._database.execute(session, statement, parameters).fetchall()
        except errors.LockNotAvailable:
            return []

    def redeem_claim(self, lease: Lease, *, token: str) -> Redeemed:
        refusal = StaleFence(f"the lease of run {lease.run_id!r} at {lease.checkpoint_seq} cannot be redeemed any more")
        try:
            run_id = named(lease.run_id)
        except NotFound:
            raise refusal from None
        row = self._database.first(
            "redeem_claim",
            {
                "id": run_id,
                "offered": lease.claim_token,
                "token": token,
                "checkpoint_seq": lease.checkpoint_seq,
                "refresh_after": bounded(lease.orphan_ttl) / 3,
                "now": self._database.now(),
            },
        )
        if row is None:
            raise refusal
        return redeemed_of(row, token)

    def read_values(
        self, run_id: str, token: str, names: Collection[str], *, checkpoint_seq: int
    ) -> dict[str, JsonValue]:
        parameters = {"id": run_id, "token": token, "checkpoint_seq": checkpoint_seq, "names": array(names)}
        rows = self._database.read("read_values", parameters)
        if not rows:
            raise StaleFence(f"run {run_id!r} is not held under this token at {checkpoint_seq} any more")
        return values_of(run_id, rows)

    def refresh_claims(self, claims: Sequence[tuple[str, str]]) -> set[str]:
        if not claims:
            return set()
        rows = self._database.read("refresh_claims", {**_columns(claims), "now": self._database.now()})
        return {row["id"] for row in rows}

    def refresh_claim(self, run_id: str, token: str) -> None:
        parameters = {"id": run_id, "token": token, "now": self._database.now()}
        if self._database.first("refresh_claim", parameters) is None:
            raise ClaimLost(f"run {run_id!r} is not claimed under this token any more")

    def release_claim(
        self, run_id: str, token: str, *, uncounted: bool = False, delay: timedelta = timedelta(0)
    ) -> None:
        self._database.write(
            "release_claim",
            {
                "id": run_id,
                "token": token,
                "uncounted": uncounted,
                "delay": bounded(delay),
                "now": self._database.now(),
            },
        )

    def release_claims(self, claims: Sequence[tuple[str, str]]) -> int:
        if not claims:
            return 0
        return self._database.write("release_claims", {**_columns(claims), "now": self._database.now()})

    def abandon_claim(self, run_id: str, token: str, policy: AbandonPolicy) -> AbandonDisposition:
        backoff = None if policy.poisoning else policy.backoff
        row = self._database.first(
            "abandon_claim",
            {
                "id": run_id,
                "token": token,
                "checkpoint_seq": policy.expected_checkpoint_seq,
                "reason": _readable(policy.reason),
                "poisoning": policy.poisoning,
                "max_abandons": policy.max_claim_abandons,
                "delay": bounded(policy.delay),
                "base": None if backoff is None else bounded(backoff.base).total_seconds(),
                "cap": None if backoff is None else bounded(backoff.cap).total_seconds(),
                "poison_reason": MAX_ABANDONS_REASON,
                "now": policy.now or self._database.now(),
            },
        )
        if row is None:
            return "stale"
        return "poisoned" if row["poisoned"] else "rescheduled"


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


def lease_of(row: DictRow, policy: ClaimPolicy) -> Lease:
    """The lease on a row that was claimed by `policy` just now."""
    return Lease(
        run_id=row["id"],
        tenant=tenant_of(row),
        graph_id=row["graph_id"],
        graph_hash=row["graph_hash"],
        checkpoint_seq=row["checkpoint_seq"],
        claim_token=row["claim_token"],
        claimed_at=row["now"],
        claim_attempt=row["claim_attempts"] + (not row["redeemed"]),
        orphan_ttl=policy.orphan_ttl,
    )


def redeemed_of(row: DictRow, token: str) -> Redeemed:
    """What the holder of the row's claim needs to begin. Raises `CorruptRecord`."""
    return Redeemed(
        run=run_of(row),
        claim_token=token,
        claimed_at=row["claimed_at"],
        claim_attempt=row["claim_attempts"],
        inbox_seq=row["inbox_seq"],
        now=row["now"],
    )


def _columns(claims: Sequence[tuple[str, str]]) -> dict[str, str]:
    return {"ids": array(run_id for run_id, _ in claims), "tokens": array(token for _, token in claims)}


def _readable(reason: str) -> str:
    """A reason as PostgreSQL can store it: it may quote anything, NUL and lone surrogates included."""
    storable = reason.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")
    return storable[:_LONGEST_REASON]
