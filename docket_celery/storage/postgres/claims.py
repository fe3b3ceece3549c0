"""Claims in PostgreSQL that somebody has: reading, keeping alive, giving back. They are redeemed in `redemptions`; the
scans are in `scans`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any, Final

from docket_celery.errors import ClaimLost, StaleFence
from docket_celery.run.document import JsonValue
from docket_celery.storage.contracts.claims import AbandonDisposition, AbandonPolicy
from docket_celery.storage.contracts.rules import MAX_ABANDONS_REASON
from docket_celery.storage.postgres.parameters import array, bounded
from docket_celery.storage.postgres.redemptions import PostgresRedemptions
from docket_celery.storage.postgres.rows import values_of

_LONGEST_REASON: Final = 2_000


class PostgresClaims(PostgresRedemptions):
    """The operations of `RunStore` on claims that are held."""

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


def _columns(claims: Sequence[tuple[str, str]]) -> dict[str, Any]:
    ids, tokens = zip(*claims, strict=True)
    return {"ids": array(ids), "tokens": array(tokens), "count": len(claims)}


def _readable(reason: str) -> str:
    """A reason as PostgreSQL can store it: it may quote anything, NUL and lone surrogates included."""
    storable = reason.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")
    return storable[:_LONGEST_REASON]
