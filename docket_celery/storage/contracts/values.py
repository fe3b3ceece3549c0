"""The values that cross the storage contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from docket_celery.errors import InvalidInput
from docket_celery.run.document import Run, RunStatus
from docket_celery.run.events import Event
from docket_celery.run.moment import Change, CheckpointType, Moment, Park, ParkKind
from docket_celery.run.views import RunCursor
from docket_celery.storage.contracts.bounds import check_limit

if TYPE_CHECKING:
    from docket_celery.storage.contracts.event_store import EventStore
    from docket_celery.storage.contracts.fleet import Fleet
    from docket_celery.storage.contracts.graph_store import GraphStore
    from docket_celery.storage.contracts.retention import Retention
    from docket_celery.storage.contracts.run_store import RunStore

LONGEST_NAME = 255
"""Characters of a tenant, graph id or start key, in any script."""
LONGEST_ID = 255
"""Bytes of a run id or a graph hash. An index entry holds one beside two names, and 2,704 bytes at most."""


def check_name(value: object, what: str) -> str:
    """`value` if it can name something: a non-empty string that PostgreSQL can store and index. Else `InvalidInput`."""
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"{what} must be a non-empty string, got {value!r}")
    if len(value) > LONGEST_NAME:
        raise InvalidInput(f"{what} must have at most {LONGEST_NAME} characters, got {len(value)}")
    if "\x00" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise InvalidInput(f"{what} must not contain NUL or lone surrogates, got {value!r}")
    return value


def check_id(value: object, what: str) -> str:
    """`value` if it can be an id that a machine made: a name, but measured in bytes. Else `InvalidInput`."""
    name = check_name(value, what)
    if (size := len(name.encode())) > LONGEST_ID:
        raise InvalidInput(f"{what} must have at most {LONGEST_ID} bytes, got {size}")
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Whose data an operation may see.

    `kind` is `system` (everything; only the engine itself), `tenantless` (what belongs to no tenant) or `tenant`.
    Make one with `SYSTEM`, `TENANTLESS` or `Scope.of(tenant)`. A wrong scope is indistinguishable from absence.
    """

    kind: Literal["system", "tenantless", "tenant"]
    tenant: str | None = None

    @classmethod
    def of(cls, tenant: str | None) -> Scope:
        """The owner scope of a tenant, or of none."""
        if tenant is None:
            return TENANTLESS
        return cls(kind="tenant", tenant=check_name(tenant, "tenant"))

    def sees(self, tenant: str | None) -> bool:
        """Whether a row of `tenant` (None: tenantless) is visible under this scope."""
        return self.kind == "system" or self.tenant == tenant


SYSTEM = Scope(kind="system")
TENANTLESS = Scope(kind="tenantless")


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphRef:
    """Names one immutable graph version."""

    graph_id: str
    graph_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphVersion:
    """A published graph version. `document` is the serialised graph."""

    ref: GraphRef
    document: Mapping[str, Any]
    published_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphVersionPage:
    """Versions of one graph, newest first; documents are left out."""

    versions: tuple[tuple[GraphRef, datetime], ...]
    next_before: GraphRef | None
    has_more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Retain:
    """Keep the claim and go on. `claimed_at` moves only when it is older than a third of `ttl`: a HOT update."""

    ttl: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Give the claim up: woken immediately, at an instant, from outside only, or never again (terminal)."""

    kind: ParkKind
    at: datetime | None = None

    @classmethod
    def from_park(cls, park: Park) -> Release:
        """The schedule of a committed park."""
        return cls(kind=park.kind, at=park.at)


Schedule: TypeAlias = Retain | Release


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PoisonedClaim:
    """A candidate that had used up its attempts and was halted instead of launched."""

    run_id: str
    poisoned_at: datetime
    poison_reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimBatch:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """How many leases a scan may hand out, judged inside the claim itself.

    Free slots = `slots`, or when None those registered by live workers (none registered counts as one), less the
    unexpired claims of every kind.

    gate  `tick`: ends at once when another scan ran within `interval` (less a twentieth, so that beat's own jitter does
          not turn every second tick away) or is running
          `nudge`: waits briefly for a running scan and then looks afresh
          `refill`: no gate; a vehicle asks that has just given up its claim, so its own slot is free
    """

    gate: Literal["tick", "nudge", "refill"]
    slots: int | None = None
    interval: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimPolicy:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Redeemed:
    """A redeemed claim: the private token, the run as committed, and the store's clock at that moment."""

    run: Run
    claim_token: str
    claimed_at: datetime
    claim_attempt: int
    inbox_seq: int
    now: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Exponential push-back computed by the store: `min(base * 2 ** abandons, cap)`."""

    base: timedelta
    cap: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class AbandonPolicy:
    """How a claim is handed back before execution began.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialRun:
    """A run to insert: initialised, with its first events, and woken immediately or `wake_at`.

    `start_key` makes the start idempotent within the owner scope; `input_digest` tells whether a later start with the
    same key means the same run.
    """

    run: Run
    events: tuple[Event, ...]
    checkpoint_type: CheckpointType = CheckpointType.RUN_INITIALIZED
    schedule: Release = Release(kind="immediate")
    start_key: str | None = None
    input_digest: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """Result of an insert: the stored run, and whether this call created it."""

    run: Run
    created: bool
    now: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitProposal:
    """One fenced transition: the run after it, its events and field changes, and what happens to the claim.

    `commit_id` is random per commit and stored with it: a repeat after a lost reply recognises its own.
    `inbox_seq` names how far the inbox was consumed; a releasing commit that left something behind wakes at once.
    """

    run: Run
    events: tuple[Event, ...]
    changes: tuple[Change, ...]
    checkpoint_type: CheckpointType
    schedule: Schedule
    expected_checkpoint_seq: int
    claim_token: str
    commit_id: str
    inbox_seq: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A durable commit: the store's clock, and the claim time now stored (None when the claim was released)."""

    now: datetime
    claimed_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A mutation's decision to write. The schedule must release: a serialised mutation revokes any claim."""

    run: Run
    events: tuple[Event, ...]
    changes: tuple[Change, ...]
    checkpoint_type: CheckpointType
    schedule: Schedule

    @classmethod
    def from_moment(cls, moment: Moment) -> Commit:
        """The decision that writes `moment`, which must park."""
        if not isinstance(moment.disposition, Park):
            raise InvalidInput("a mutation's moment must park")
        return cls(
            run=moment.run,
            events=moment.events,
            changes=moment.changes,
            checkpoint_type=moment.checkpoint_type,
            schedule=Release.from_park(moment.disposition),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NoChange:
    """A mutation's decision to leave everything exactly as it is."""


MutationDecision: TypeAlias = Commit | NoChange


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutated:
    """Result of a mutation: the run as it now stands, and whether this call changed it."""

    run: Run
    changed: bool
    now: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ListQuery:
    """Filters of a run list; None means any. `before` is exclusive."""

    limit: int = 50
    before: RunCursor | None = None
    graph_id: str | None = None
    graph_hash: str | None = None
    statuses: tuple[RunStatus, ...] | None = None

    def __post_init__(self) -> None:
        check_limit(self.limit)
        for value, what in ((self.graph_id, "graph id"), (self.graph_hash, "graph hash")):
            if value is not None:
                check_name(value, what)
        if self.statuses is not None and not self.statuses:
            raise InvalidInput("statuses must be None or name at least one status")


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """The bundle a client, a dispatcher and a vehicle work with."""

    graphs: GraphStore
    runs: RunStore
    events: EventStore
    fleet: Fleet
    retention: Retention
