"""How the drain of one lease can end: exactly one of these, each with what it did to the claim.

`kind` is the same for every value of a class, for counting; `str()` tells the whole story, for logs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from docket_celery.run.moment import ParkKind
from docket_celery.storage.contracts.claims import AbandonDisposition

Boundary: TypeAlias = Literal["max_moments", "max_elapsed", "both", "stopping"]
"""What narrowed a continuing moment to a park: a drain budget, both at once, or the worker's own end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """Drained to a committed stop. `boundary` says what forced it, if the run itself would have gone on."""

    kind: ClassVar[str] = "parked"
    park: ParkKind
    boundary: Boundary | None = None

    def __str__(self) -> str:
        return f"parked:{self.park}" + (f" ({self.boundary})" if self.boundary else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceLost:
    """There was nothing to redeem: the lease was delivered before, stolen, or overtaken. No node code ran."""

    kind: ClassVar[str] = "fence_lost"

    def __str__(self) -> str:
        return self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Discarded:
    """The fence was gone when a moment was to be committed, or before more was begun; somebody else has the run."""

    kind: ClassVar[str] = "discarded"
    reason: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandoned:
    """This process cannot decode or compile the run; handed back, at the cost of an abandon."""

    kind: ClassVar[str] = "abandoned"
    disposition: AbandonDisposition
    reason: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.disposition}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostIncompatible:
    """A node's own limit exceeds what this host allows; pushed back, never poisoned for it."""

    kind: ClassVar[str] = "host_incompatible"
    reason: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deferred:
    """Nothing is due yet; handed back until it is."""

    kind: ClassVar[str] = "deferred"
    disposition: AbandonDisposition

    def __str__(self) -> str:
        return f"{self.kind}:{self.disposition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """A passing obstacle: the graph could not be loaded, or the claim's time or the worker's end allowed no further
    node. Given back uncounted."""

    kind: ClassVar[str] = "released"
    reason: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreached:
    """The database stayed out of reach for as long as the claim had time; its expiry recovers the run."""

    kind: ClassVar[str] = "unreached"
    reason: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.reason}"


Outcome: TypeAlias = Parked | FenceLost | Discarded | Abandoned | HostIncompatible | Deferred | Released | Unreached
