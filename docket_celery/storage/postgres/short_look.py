"""A short look for a ready run, as a value: what a statement that takes one is given."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from docket_celery.storage.contracts.taking import TakeRequest
from docket_celery.storage.postgres.horizon import Horizon
from docket_celery.storage.postgres.parameters import bounded


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortLook:
    """One short look for a ready run: where it begins, when, and what its statement is given."""

    request: TakeRequest
    horizon: Horizon
    parameters: dict[str, Any]
    began: float = field(default_factory=time.monotonic)

    def is_like(self, other: ShortLook) -> bool:
        """Whether both would take the same runs in the same way, but for the turns of classes."""
        if self.request.redeem != other.request.redeem:
            return False
        own, theirs = self.request.policy, other.request.policy
        return replace(own, preference=None, fraction=0.0) == replace(theirs, preference=None, fraction=0.0)


def short_look(request: TakeRequest, horizon: Horizon, *, now: datetime | None) -> ShortLook:
    """A look for what `request` wants, from `horizon` on; `now` pins the clock."""
    policy = request.policy
    parameters = {
        "now": now,
        "token": request.token,
        "demanded": policy.demand is not None,
        "slots": None if policy.demand is None else policy.demand.slots,
        "ttl": bounded(policy.orphan_ttl),
        "max_attempts": policy.max_claim_attempts,
        "preference": policy.preference,
        "ready_from": horizon.ready_from,
        "claimed_from": horizon.claimed_from,
    }
    return ShortLook(request=request, horizon=horizon, parameters=parameters)
