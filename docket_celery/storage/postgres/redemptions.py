"""Redemptions in PostgreSQL, each under its fence: one by itself, or those of several vehicles of this process at once.

Which of the two changes nothing but the cost: a lease that does not come back from the statement it shared is redeemed
by itself, and only there refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from psycopg.rows import DictRow

from docket_celery.errors import NotFound, StaleFence
from docket_celery.storage.contracts.claims import Lease, Redeemed
from docket_celery.storage.postgres.database import Database
from docket_celery.storage.postgres.group_commit import GroupCommit
from docket_celery.storage.postgres.parameters import array, bounded, named, numbers
from docket_celery.storage.postgres.rows import redeemed_of
from docket_celery.storage.postgres.scans import PostgresScans


class Redemption(Struct, frozen=True, kw_only=True, eq=False):
    """A lease, with the token that its vehicle chose."""

    lease: Lease
    token: str

    def refused(self) -> StaleFence:
        lease = self.lease
        return StaleFence(f"the lease of run {lease.run_id!r} at {lease.checkpoint_seq} cannot be redeemed any more")


class PostgresRedemptions(PostgresScans):
    """`redeem_claim` of `RunStore`."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._redemptions = GroupCommit(self._redeem, self._redeem_together)

    def redeem_claim(self, lease: Lease, *, token: str) -> Redeemed:
        redemption = Redemption(lease=lease, token=token)
        try:
            named(lease.run_id)
        except NotFound:
            raise redemption.refused() from None
        return redeemed_of(self._redemptions(redemption), token)

    def _redeem(self, redemption: Redemption) -> DictRow:
        """The row of one lease that was redeemed."""
        lease = redemption.lease
        row = self._database.first(
            "redeem_claim",
            {
                "id": lease.run_id,
                "offered": lease.claim_token,
                "token": redemption.token,
                "checkpoint_seq": lease.checkpoint_seq,
                "refresh_after": bounded(lease.orphan_ttl) / 3,
                "now": self._database.now(),
            },
        )
        if row is None:
            raise redemption.refused()
        return row

    def _redeem_together(self, redemptions: Sequence[Redemption]) -> list[DictRow | None]:
        """The rows of several, told apart by the tokens that were chosen; None for those that were not redeemed."""
        leases = [redemption.lease for redemption in redemptions]
        rows = self._database.read_together(
            "redeem_claims",
            {
                "ids": array(lease.run_id for lease in leases),
                "offered": array(lease.claim_token for lease in leases),
                "tokens": array(redemption.token for redemption in redemptions),
                "checkpoint_seqs": numbers(lease.checkpoint_seq for lease in leases),
                "refresh_afters": array(f"{bounded(lease.orphan_ttl).total_seconds() / 3} s" for lease in leases),
                "count": len(leases),
                "now": self._database.now(),
            },
        )
        redeemed = {row["claim_token"]: row for row in rows}
        return [redeemed.get(redemption.token) for redemption in redemptions]
