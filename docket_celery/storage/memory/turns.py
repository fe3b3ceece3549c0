"""Which runs one scan takes when tenants take turns: pure selection, breadth-first. It changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from docket_celery.storage.contracts.claims import ClaimPolicy
from docket_celery.storage.memory.candidates import Candidate
from docket_celery.storage.memory.state import StoredRun


def choose_in_turn(
    ranked: Sequence[Candidate], limit: int, policy: ClaimPolicy, stored: Iterable[StoredRun]
) -> list[Candidate]:
    """At most `limit` of `ranked`: ready runs tenant by tenant, expired claims by rank, each class up to its share."""
    expired = [candidate for candidate in ranked if candidate.kind == "expired"]
    ready = [candidate for candidate in ranked if candidate.kind == "ready"]
    turns = _breadth_first(ready, policy, _claims_by_tenant(stored))[:limit]
    share = _share_of_expired(len(expired), len(turns), limit, policy)
    return [*expired[:share], *turns[: limit - share]]


def _breadth_first(ready: Iterable[Candidate], policy: ClaimPolicy, out: Mapping[str | None, int]) -> list[Candidate]:
    """The ready runs in the order in which their tenants' turns come round; without those that a cap holds back."""
    queues: dict[str | None, list[Candidate]] = {}
    for candidate in ready:
        queues.setdefault(candidate.stored.tenant, []).append(candidate)
    tenants = sorted(queues, key=lambda tenant: tenant or "")
    first = int(policy.fraction * len(tenants))
    placed = []
    for turn, tenant in enumerate(tenants[first:] + tenants[:first]):
        room = None if policy.tenant_cap is None else max(0, policy.tenant_cap - out.get(tenant, 0))
        queue = sorted(queues[tenant], key=_place)[:room]
        placed += [(place, turn, candidate) for place, candidate in enumerate(queue)]
    return [candidate for _, _, candidate in sorted(placed, key=lambda entry: entry[:2])]


def _share_of_expired(expired: int, ready: int, limit: int, policy: ClaimPolicy) -> int:
    """How many of `limit` outcomes go to the expired class, of which there are `expired`; `ready` can be handed out."""
    if limit == 1:
        return min(expired, 0 if policy.preference == "ready" and ready else 1)
    return min(expired, max(limit // 2, limit - ready))


def _claims_by_tenant(stored: Iterable[StoredRun]) -> dict[str | None, int]:
    counts: dict[str | None, int] = {}
    for run in stored:
        if run.claimed_at is not None:
            counts[run.tenant] = counts.get(run.tenant, 0) + 1
    return counts


def _place(candidate: Candidate) -> tuple[bool, datetime, str]:
    """Within a tenant: what has been begun first, then by age."""
    return candidate.stored.run.checkpoint_seq == 1, *candidate.rank
