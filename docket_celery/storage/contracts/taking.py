"""Taking a run: claiming one that is due and redeeming it, for a slot that begins it at once; or only leasing it."""

from __future__ import annotations

from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from docket_celery.errors import CorruptRecord, StaleFence
from docket_celery.storage.contracts.claims import ClaimBatch, ClaimPolicy, Lease, Redeemed

_MOST_SCANS: Final = 8
"""Runs in a row that may be taken away between the scan and the redemption."""


class TakeRequest(Struct, frozen=True, kw_only=True):
    """What a slot asks for: one run by `policy`, to be held under `token`, which nobody else ever has.

    Without `redeem` the run is only leased, under that token, for whoever gets the message. This is for requests that a
    commit carries: without a commit, `claim_due` is what leases.
    """

    policy: ClaimPolicy
    token: str
    redeem: bool = True


class Taken(Struct, frozen=True, kw_only=True):
    """What came of taking one run: the outcomes of the scan, and the claim.

    batch  holds exactly one lease when a run was taken, and none otherwise; its token is the request's
    claim  None when no run was taken, or it was only leased; the error where the run that was taken cannot be decoded,
           so that its taker can abandon it
    """

    batch: ClaimBatch
    claim: Redeemed | CorruptRecord | None = None


class _Claims(Protocol):
    def claim_due(self, policy: ClaimPolicy) -> ClaimBatch: ...

    def redeem_claim(self, lease: Lease, *, token: str) -> Redeemed: ...


def take_in_two(runs: _Claims, policy: ClaimPolicy, token: str) -> Taken:
    """Takes a run by a scan and a redemption: the way for all that one short statement does not decide, such as
    exhausted attempts, expired claims and the turns of tenants.
    """
    for _ in range(_MOST_SCANS):
        batch = runs.claim_due(replace(policy, limit=1, delivery="lease"))
        if not batch.leases:
            return Taken(batch=batch)
        (lease,) = batch.leases
        claim: Redeemed | CorruptRecord
        try:
            claim = runs.redeem_claim(lease, token=token)
        except StaleFence:
            # An earlier message has redeemed it, or somebody has changed the run, just now: others may be due.
            continue
        except CorruptRecord as error:
            claim = error
        return Taken(batch=replace(batch, leases=(replace(lease, claim_token=token),)), claim=claim)
    return Taken(batch=replace(batch, leases=(), stolen=0, reissued=0))
