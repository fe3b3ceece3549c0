"""Drains due runs in the calling process, one after the other: for tests, scripts and emergencies.

Asks for no free slot and leaves nothing to the broker.
"""

from __future__ import annotations

from docket_celery.engine import Engine
from docket_celery.storage.contracts.claims import ClaimPolicy
from docket_celery.storage.contracts.taking import Taken, TakeRequest
from docket_celery.vehicle import Vehicle
from docket_celery.vehicle.succession import Succession, give_back


def drain_due(engine: Engine, *, limit: int | None) -> int:
    """As `Client.drain` says."""
    policy = ClaimPolicy(limit=1, orphan_ttl=engine.orphan_ttl, max_claim_attempts=engine.config.max_claim_attempts)
    vehicle = Vehicle(engine)
    drained = 0
    crash: Exception | None = None

    def request() -> TakeRequest | None:
        wanted = limit is None or drained < limit
        return TakeRequest(policy=policy, token=engine.ids.token()) if wanted else None

    slot = Succession(request)
    try:
        while (taken := _next(engine, slot)) is not None:
            if taken.claim is None:
                continue
            drained += 1
            try:
                vehicle.drive(taken, asked_at=slot.asked_at, heard_at=slot.heard_at, succession=slot)
            except Exception as error:
                crash = crash or error
    finally:
        give_back(slot, engine.storage.runs)
    if crash is not None:
        raise crash
    return drained


def _next(engine: Engine, slot: Succession) -> Taken | None:
    """Who came along with the last commit, or else what a scan takes, which may be nothing but halted runs. None when
    nothing is due or enough was drained.
    """
    taken = slot.pop()
    if taken is not None:
        return taken
    request = slot.ask()
    if request is None:
        return None
    slot.asked_at = engine.clock.monotonic()
    taken = engine.storage.runs.take_due(request.policy, token=request.token)
    slot.heard_at = engine.clock.monotonic()
    return taken if taken.claim is not None or taken.batch.poisoned else None
