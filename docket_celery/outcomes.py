"""How the drain of one lease can end: exactly one of these, each with what it did to the claim."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from docket_celery.run.moment import ParkKind
from docket_celery.storage.contracts.values import AbandonDisposition


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """Drained to a committed stop. `budget` names the drain budget that forced it, if one did."""

    kind: ParkKind
    budget: Literal["max_moments", "max_elapsed", "both", "stopping"] | None = None

    def __str__(self) -> str:
        return f"parked:{self.kind}" + (f" ({self.budget})" if self.budget else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceLost:
    """There was nothing to redeem: the lease was delivered before, stolen, or overtaken. No node code ran."""

    def __str__(self) -> str:
        return "fence_lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Discarded:
    """A computed moment found its fence gone; somebody else has the run."""

    reason: str

    def __str__(self) -> str:
        return f"discarded: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandoned:
    """This process cannot decode or compile the run; handed back, at the cost of an abandon."""

    disposition: AbandonDisposition
    reason: str

    def __str__(self) -> str:
        return f"abandoned:{self.disposition}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostIncompatible:
    """A node's own limit exceeds what this host allows; pushed back, never poisoned for it."""

    reason: str

    def __str__(self) -> str:
        return f"host_incompatible: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deferred:
    """Nothing is due yet; handed back until it is."""

    disposition: AbandonDisposition

    def __str__(self) -> str:
        return f"deferred:{self.disposition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """A passing fault before any node ran; given back uncounted, to be tried again after a short delay."""

    reason: str

    def __str__(self) -> str:
        return f"released: {self.reason}"


Outcome: TypeAlias = Parked | FenceLost | Discarded | Abandoned | HostIncompatible | Deferred | Released
