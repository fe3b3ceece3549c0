"""The values that cross the storage contract."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from msgspec import Struct

from docket_celery.errors import InvalidInput, shown
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
    from docket_celery.storage.contracts.taking import Taken

LONGEST_NAME = 255
"""Characters of a tenant, graph id or start key, in any script."""
LONGEST_ID = 255
"""Bytes of a run id or a graph hash. An index entry holds one beside two names, and 2,704 bytes at most."""
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")


def check_name(value: object, what: str) -> str:
    """`value` if it can name something: a non-empty string that PostgreSQL can store and index. Else `InvalidInput`."""
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"{what} must be a non-empty string, got {shown(value)}")
    if len(value) > LONGEST_NAME:
        raise InvalidInput(f"{what} must have at most {LONGEST_NAME} characters, got {len(value)}")
    if _UNSTORABLE.search(value):
        raise InvalidInput(f"{what} must not contain NUL or lone surrogates, got {shown(value)}")
    return value


def check_id(value: object, what: str) -> str:
    """`value` if it can be an id that a machine made: a name, but measured in bytes. Else `InvalidInput`."""
    name = check_name(value, what)
    if (size := len(name.encode())) > LONGEST_ID:
        raise InvalidInput(f"{what} must have at most {LONGEST_ID} bytes, got {size}")
    return name


class Scope(Struct, frozen=True, kw_only=True):
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


class GraphRef(Struct, frozen=True, kw_only=True):
    """Names one immutable graph version."""

    graph_id: str
    graph_hash: str


class GraphVersion(Struct, frozen=True, kw_only=True):
    """A published graph version. `document` is the serialised graph."""

    ref: GraphRef
    document: Mapping[str, Any]
    published_at: datetime


class GraphVersionPage(Struct, frozen=True, kw_only=True):
    """Versions of one graph, newest first; documents are left out."""

    versions: tuple[tuple[GraphRef, datetime], ...]
    next_before: GraphRef | None
    has_more: bool


class Retain(Struct, frozen=True, kw_only=True):
    """Keep the claim and go on. `claimed_at` moves only when it is older than a third of `ttl`: a HOT update.

    quiet  whether the answer may be `QUIET` where `claimed_at` does not move
    """

    ttl: timedelta
    quiet: bool = False


class Release(Struct, frozen=True, kw_only=True):
    """Give the claim up: woken immediately, at an instant, from outside only, or never again (terminal)."""

    kind: ParkKind
    at: datetime | None = None

    @classmethod
    def from_park(cls, park: Park) -> Release:
        """The schedule of a committed park."""
        return cls(kind=park.kind, at=park.at)


Schedule: TypeAlias = Retain | Release


class InitialRun(Struct, frozen=True, kw_only=True):
    """A run to insert: initialised, with its first events and its first wake, which `schedule` names.

    `start_key` makes the start idempotent within the owner scope; `input_digest` tells whether a later start with the
    same key means the same run.
    """

    run: Run
    events: tuple[Event, ...]
    checkpoint_type: CheckpointType = CheckpointType.RUN_INITIALIZED
    schedule: Release = Release(kind="immediate")
    start_key: str | None = None
    input_digest: str | None = None


class Started(Struct, frozen=True, kw_only=True):
    """Result of an insert: the stored run, and whether this call created it."""

    run: Run
    created: bool
    now: datetime


class CommitProposal(Struct, frozen=True, kw_only=True):
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


class Committed(Struct, frozen=True, kw_only=True):
    """A durable commit: the store's clock, and the claim time now stored (None when the claim was released). Both are
    None in `QUIET`, which says of the claim only that it is as it was.

    taken  the run that was brought along for the slot that the commit frees, if one was asked for
    """

    now: datetime | None
    claimed_at: datetime | None
    taken: Taken | None = None


QUIET = Committed(now=None, claimed_at=None)
"""What a quiet commit may answer."""


class Commit(Struct, frozen=True, kw_only=True):
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


class NoChange(Struct, frozen=True, kw_only=True):
    """A mutation's decision to leave everything exactly as it is."""


MutationDecision: TypeAlias = Commit | NoChange


class Mutated(Struct, frozen=True, kw_only=True):
    """Result of a mutation: the run as it now stands, and whether this call changed it."""

    run: Run
    changed: bool
    now: datetime


class ListQuery(Struct, frozen=True, kw_only=True):
    """Filters of a run list; None means any. `before` is exclusive; `poisoned` leaves out all that are not."""

    limit: int = 50
    before: RunCursor | None = None
    graph_id: str | None = None
    graph_hash: str | None = None
    statuses: tuple[RunStatus, ...] | None = None
    poisoned: bool = False

    def __post_init__(self) -> None:
        check_limit(self.limit)
        for value, what in ((self.graph_id, "graph id"), (self.graph_hash, "graph hash")):
            if value is not None:
                check_name(value, what)
        if self.statuses is not None and not self.statuses:
            raise InvalidInput("statuses must be None or name at least one status")
        if not isinstance(self.poisoned, bool):
            raise InvalidInput(f"poisoned must be True or False, got {shown(self.poisoned)}")


class Storage(Struct, frozen=True, kw_only=True):
    """The bundle a client, a dispatcher and a vehicle work with."""

    graphs: GraphStore
    runs: RunStore
    events: EventStore
    fleet: Fleet
    retention: Retention
