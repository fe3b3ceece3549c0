"""A run store that hands out runs without any of their values, as PostgreSQL does with large ones."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from docket_celery.run.document import Run
from docket_celery.storage.contracts.claims import ClaimPolicy, Lease, Redeemed
from docket_celery.storage.contracts.taking import Taken, TakeRequest
from docket_celery.storage.contracts.values import CommitProposal, Committed, Scope


class LeavingStore:
    """Stands before any of the stores; whoever holds a claim has to read each value that it needs."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def redeem_claim(self, lease: Lease, *, token: str) -> Redeemed:
        return _without_values(self._inner.redeem_claim(lease, token=token))

    def take_due(self, policy: ClaimPolicy, *, token: str) -> Taken:
        return _taken_without_values(self._inner.take_due(policy, token=token))

    def take_alone(self, policy: ClaimPolicy, *, token: str) -> Taken | None:
        taken: Taken | None = self._inner.take_alone(policy, token=token)
        return None if taken is None else _taken_without_values(taken)

    def commit(self, scope: Scope, proposal: CommitProposal, *, take: TakeRequest | None = None) -> Committed:
        done: Committed = self._inner.commit(scope, proposal, take=take)
        return done if done.taken is None else replace(done, taken=_taken_without_values(done.taken))

    def __getattr__(self, method: str) -> Any:
        return getattr(self._inner, method)


def emptied(run: Run) -> Run:
    """The run with all its values unread."""
    return replace(run, fields={}, unread=frozenset(run.fields))


def _taken_without_values(taken: Taken) -> Taken:
    return replace(taken, claim=_without_values(taken.claim)) if isinstance(taken.claim, Redeemed) else taken


def _without_values(claim: Redeemed) -> Redeemed:
    return replace(claim, run=emptied(claim.run))
