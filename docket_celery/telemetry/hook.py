"""The facts that the engine reports, and the Protocol of whoever listens.

Best effort: a listener never decides anything.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from msgspec import Struct

from docket_celery.run.moment import Moment

logger = logging.getLogger("docket_celery")


class MomentCommitted(Struct, frozen=True, kw_only=True):
    """A transition is durable. Its run has all its values if any hook may read them: see `Hooks.add`."""

    moment: Moment
    tenant: str | None


class LeasesGranted(Struct, frozen=True, kw_only=True):
    """A scan claimed runs; `stolen` and `reissued` of them from claims that had expired (see `ClaimBatch`)."""

    leases: int
    stolen: int
    reissued: int


class LeaseRefused(Struct, frozen=True, kw_only=True):
    """A lease had nothing to redeem: delivered twice, stolen, or overtaken by a signal."""

    run_id: str
    reason: str


class RunsPoisoned(Struct, frozen=True, kw_only=True):
    """Runs were halted: by a scan that found their attempts used up, or by one hand-back too many."""

    run_ids: tuple[str, ...]


class DrainFinished(Struct, frozen=True, kw_only=True):
    """One lease came to its end: exactly one for each that did not crash.

    `outcome` is the kind (few values), `detail` the whole story; `elapsed` counts from the first moment on and
    `claim_held` from the lease on, in seconds. `boundary` names what narrowed the last moment to a park, if anything.
    """

    run_id: str
    graph_id: str
    claim_attempt: int
    outcome: str
    detail: str
    committed_moments: int
    elapsed: float
    claim_held: float
    boundary: str | None


class VehicleCrashed(Struct, frozen=True, kw_only=True):
    """A vehicle ended with an exception that it did not foresee; the expiry of its claim recovers the run."""

    run_id: str
    graph_id: str
    claim_attempt: int
    committed_moments: int
    claim_held: float
    error: str
    message: str


Fact: TypeAlias = MomentCommitted | LeasesGranted | LeaseRefused | RunsPoisoned | DrainFinished | VehicleCrashed


class Hook(Protocol):
    """Receives facts in the process where they happened, after they are durable."""

    def __call__(self, fact: Fact) -> None: ...


NeedsValues: TypeAlias = Callable[[Moment], bool]
"""Whether a hook, told of this moment, may read the field values of its run."""


class Hooks:
    """Passes each fact to every hook; one that raises is logged and stops nobody."""

    def __init__(self, hooks: Sequence[Hook] = ()) -> None:
        self._hooks: list[Hook] = []
        self._needs_values: list[NeedsValues] = []
        for hook in hooks:
            self.add(hook)

    def add(self, hook: Hook, *, needs_values: NeedsValues = lambda moment: True) -> None:
        """Adds one more listener. A vehicle does not fetch large values for one that says it does not need them.

        It is given the run that the vehicle goes on with, and must change nothing in it.
        """
        self._hooks.append(hook)
        self._needs_values.append(needs_values)

    def need_values(self, moment: Moment) -> bool:
        """Whether somebody who is told of this moment may read its run's field values."""
        return any(needs(moment) for needs in self._needs_values)

    def __call__(self, fact: Fact) -> None:
        for hook in self._hooks:
            try:
                hook(fact)
            except Exception:
                logger.exception("a telemetry hook failed on %s", type(fact).__name__)
