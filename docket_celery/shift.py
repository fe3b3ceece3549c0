"""What one worker slot does with one lease, and then with the next: a vehicle that goes on while work is due.

The broker is not asked for every run. When its lease is drained, the slot claims the next due run itself, until
nothing is due, its time is up, or its worker wants to stop; if work is still due then, it leaves one lease behind for
the slot that it frees.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from docket_celery.dispatcher import Dispatcher
from docket_celery.engine import Engine
from docket_celery.outcomes import FenceLost, Outcome
from docket_celery.storage.contracts.values import Lease
from docket_celery.vehicle import Vehicle


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftReport:
    """How the first lease ended, and how many further runs the slot took on."""

    outcome: Outcome
    refilled: int

    def __str__(self) -> str:
        return str(self.outcome) + (f" (+{self.refilled} more)" if self.refilled else "")


class Shift:
    """One slot's work for one delivered lease."""

    def __init__(self, engine: Engine, dispatcher: Dispatcher, *, stopping: Callable[[], bool] = lambda: False) -> None:
        self._engine = engine
        self._dispatcher = dispatcher
        self._stopping = stopping
        self._vehicle = Vehicle(engine, stopping=stopping)

    def work(self, lease: Lease) -> ShiftReport:
        """Drains `lease`, then what else is due. A lease that had nothing to redeem ends the shift at once."""
        until = self._engine.clock.monotonic() + self._engine.config.vehicle_max_elapsed
        outcome = self._vehicle.drain(lease)
        if isinstance(outcome, FenceLost):
            return ShiftReport(outcome=outcome, refilled=0)
        refilled = 0
        if self._engine.config.refill == "direct":
            while self._may_go_on(until):
                following = self._dispatcher.refill()
                if following is None:
                    return ShiftReport(outcome=outcome, refilled=refilled)
                self._vehicle.drain(following)
                refilled += 1
        self._dispatcher.hand_on()
        return ShiftReport(outcome=outcome, refilled=refilled)

    def _may_go_on(self, until: float) -> bool:
        return self._engine.clock.monotonic() < until and not self._stopping()
