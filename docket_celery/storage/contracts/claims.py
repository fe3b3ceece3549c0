"""The values that claims are made of: what a scan may hand out, a lease, its redemption, and handing it back."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal, TypeAlias

from msgspec import Struct

from docket_celery.errors import InvalidInput
from docket_celery.run.document import Run
from docket_celery.storage.contracts.values import Scope


class Lease(Struct, frozen=True, kw_only=True):
    """Authority to start one run, small and fixed in size: what `claim_due` returns and the broker carries."""

    run_id: str
    tenant: str | None
    graph_id: str
    graph_hash: str
    checkpoint_seq: int
    claim_token: str
    claimed_at: datetime
    claim_attempt: int
    """The number this launch has or, unredeemed, will have once it is redeemed."""
    orphan_ttl: timedelta

    @property
    def scope(self) -> Scope:
        return Scope(kind="tenantless") if self.tenant is None else Scope(kind="tenant", tenant=self.tenant)


class PoisonedClaim(Struct, frozen=True, kw_only=True):
    """A candidate that had used up its attempts and was halted instead of launched."""

    run_id: str
    poisoned_at: datetime
    poison_reason: str


class ClaimBatch(Struct, frozen=True, kw_only=True):
    """Outcome of one scan, at most `limit` in all.

    `stolen` counts leases that took over an expired redeemed claim, `reissued` those of claims nobody had redeemed.
    `now` is the store's clock. `scanned` is False when the scan ended at its gate (another tick had done the work).
    """

    leases: tuple[Lease, ...]
    poisoned: tuple[PoisonedClaim, ...]
    now: datetime
    stolen: int = 0
    reissued: int = 0
    scanned: bool = True
    next_wake_at: datetime | None = None
    """The earliest wake to come within the hour, so that whoever scans can be there in time."""


class Demand(Struct, frozen=True, kw_only=True):
    """How many leases a scan may hand out, judged inside the claim itself.

    Free slots = `slots`, or when None those registered by live workers (none registered counts as one), less the
    unexpired claims of every kind.

    gate  `tick`: ends at once when another scan ran within `interval` (less a twentieth, so that beat's own jitter does
          not turn every second tick away) or is running; a scan more than an interval ahead, as after the clock was set
          back, keeps no tick out
          `nudge`: waits briefly for a running scan and then looks afresh
          `refill`: no gate; a vehicle asks that has just given up its claim, so its own slot is free
    """

    gate: Literal["tick", "nudge", "refill"]
    slots: int | None = None
    interval: timedelta = timedelta(0)


class ClaimPolicy(Struct, frozen=True, kw_only=True):
    """Rules of one scan.

    `delivery` `lease`: counted when redeemed, an expired unredeemed claim is handed out again under its token.
    `direct`: counted now, always a fresh token; for a caller that starts the run itself, at once.
    `preference` names the class served first when `limit` is 1. `now` pins the store's clock, for tests.
    `demand` None hands out up to `limit` regardless of slots.

    `order` says who comes first: `age`, the longest eligible; `tenants`, each tenant in turn (`RunStore.claim_due`).
    With `tenants`, `fraction`, drawn anew for each scan from [0, 1), says with which tenant the scan begins, and
    `tenant_cap` is the number of claims that a tenant may have out, None for any.
    """

    limit: int
    orphan_ttl: timedelta
    max_claim_attempts: int
    delivery: Literal["lease", "direct"] = "lease"
    preference: Literal["ready", "expired"] | None = None
    demand: Demand | None = None
    now: datetime | None = None
    order: Literal["age", "tenants"] = "age"
    fraction: float = 0.0
    tenant_cap: int | None = None

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise InvalidInput(f"claim limit must be at least 1, got {self.limit}")
        if self.max_claim_attempts < 1:
            raise InvalidInput(f"max_claim_attempts must be at least 1, got {self.max_claim_attempts}")
        if self.orphan_ttl < timedelta(0):
            raise InvalidInput(f"orphan_ttl must not be negative, got {self.orphan_ttl}")
        if not 0 <= self.fraction < 1:
            raise InvalidInput(f"fraction must be from 0 to below 1, got {self.fraction}")
        if self.tenant_cap is not None and self.tenant_cap < 1:
            raise InvalidInput(f"tenant_cap must be at least 1, got {self.tenant_cap}")
        if self.tenant_cap is not None and self.order != "tenants":
            raise InvalidInput(f"tenant_cap goes with the order 'tenants' only, got {self.order!r}")


class Redeemed(Struct, frozen=True, kw_only=True):
    """A redeemed claim: the private token, the run as committed, and the store's clock at that moment."""

    run: Run
    claim_token: str
    claimed_at: datetime
    claim_attempt: int
    inbox_seq: int
    now: datetime


class Backoff(Struct, frozen=True, kw_only=True):
    """Exponential push-back computed by the store: `min(base * 2 ** abandons, cap)`."""

    base: timedelta
    cap: timedelta


class AbandonPolicy(Struct, frozen=True, kw_only=True):
    """How a claim is handed back by a vehicle that cannot execute the run.

    `delay` is counted from the store's clock. `poisoning` False never poisons and, with `backoff`, computes the delay
    from the stored count of abandons instead. `reason` is kept for operators to read.
    """

    expected_checkpoint_seq: int
    delay: timedelta
    max_claim_abandons: int
    reason: str
    poisoning: bool = True
    backoff: Backoff | None = None
    now: datetime | None = None

    def __post_init__(self) -> None:
        if self.delay < timedelta(0):
            raise InvalidInput(f"an abandon's delay must not be negative, got {self.delay}")


AbandonDisposition: TypeAlias = Literal["rescheduled", "poisoned", "stale"]
