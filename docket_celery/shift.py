"""What one worker slot does with one message: it drives a run, and then further runs for as long as some are due.

A message carries a lease, or none: then it is a nudge, and the slot takes the one run that is due or, if there are
more, claims for the whole fleet, publishes the other leases and keeps the first. When its run has stopped, the slot
claims the next one itself, without the broker, until nothing is due, its time is up, a node has failed that a task of
its own may help, or its worker is stopping. If work may still be due then, it publishes one lease for the slot that it
frees. Broker and database may fail between two runs: what a shift cannot do then is left to the tick.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from docket_celery.dispatcher import Dispatcher
from docket_celery.engine import Engine
from docket_celery.errors import StoreError
from docket_celery.storage.contracts.claims import ClaimBatch, Lease
from docket_celery.storage.contracts.taking import TakeRequest
from docket_celery.vehicle import Vehicle
from docket_celery.vehicle.outcomes import FenceLost, Outcome, Unreached
from docket_celery.vehicle.succession import Succession, give_back

logger = logging.getLogger("docket_celery")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftReport:
    """How the first lease ended, how many further runs the slot took on, and in how many of these it crashed."""

    outcome: Outcome
    refilled: int = 0
    crashed: int = 0

    def __str__(self) -> str:
        more = f" (+{self.refilled} more)" if self.refilled else ""
        return f"{self.outcome}{more}" + (f", {self.crashed} crashed" if self.crashed else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class NudgeReport:
    """What came of a nudge: what was claimed, None where the database could not be asked, and how the slot's own shift
    went, which began with the first of these leases.
    """

    batch: ClaimBatch | None
    shift: ShiftReport | None = None

    def __str__(self) -> str:
        if self.batch is None:
            return "unanswered"
        counts = {"stolen": self.batch.stolen, "poisoned": len(self.batch.poisoned)}
        besides = "".join(f", {count} {what}" for what, count in counts.items() if count)
        if not self.batch.leases:
            return "nothing to claim" + besides
        own = self.batch.leases[0]
        return f"claimed {len(self.batch.leases)}{besides}; graph={own.graph_id} run={own.run_id} {self.shift}"


class Shift:
    """One slot's work for one message. `is_tidied` is asked after a node that failed: whether anything is put in order
    between this task and the next one in this process.
    """

    def __init__(
        self,
        engine: Engine,
        dispatcher: Dispatcher,
        *,
        stopping: Callable[[], bool] = lambda: False,
        is_tidied: Callable[[], bool] = lambda: True,
    ) -> None:
        self._engine = engine
        self._dispatcher = dispatcher
        self._stopping = stopping
        self._is_tidied = is_tidied
        self._vehicle = Vehicle(engine, stopping=stopping)

    def answer(self, found: Callable[[], None] = lambda: None) -> NudgeReport:
        """Answers a nudge. Where one run is due and nothing else, the slot takes it. Otherwise it claims for every free
        slot, hands the other leases on, and works on the first itself. `found` is called as soon as there is something
        to work on, before that begins.
        """
        with self._slot() as (slot, until):
            slot.asked_at = self._engine.clock.monotonic()
            try:
                slot.taken = self._dispatcher.take_alone()
                slot.heard_at = self._engine.clock.monotonic()
                batch = self._dispatcher.nudge() if slot.taken is None else slot.taken.batch
            except StoreError:
                logger.warning("the slot could not claim for a nudge", exc_info=True)
                return NudgeReport(batch=None)
            if batch.leases:
                found()
            if slot.taken is not None:
                self._dispatcher.tell(batch)
                return NudgeReport(batch=batch, shift=self._go_on(lambda: self._drive_next(slot), slot, until))
        return NudgeReport(batch=batch, shift=self.work(batch.leases[0]) if batch.leases else None)

    def work(self, lease: Lease) -> ShiftReport:
        """Drains the lease and goes on while it may. A lease that had nothing to redeem ends the shift at once.

        Raises what the first lease's vehicle raised, so that the task that carried it fails.
        """
        with self._slot() as (slot, until):
            return self._go_on(lambda: self._vehicle.drain(lease, slot), slot, until)

    @contextmanager
    def _slot(self) -> Iterator[tuple[Succession, float]]:
        """The slot, and the instant until which it takes further runs, in monotonic seconds. A run that is still in it
        at the end is given back.
        """
        until = self._engine.clock.monotonic() + self._engine.config.vehicle_max_elapsed
        slot = Succession()
        slot.ask = lambda: self._request(slot, until)
        try:
            yield slot, until
        finally:
            give_back(slot, self._engine.storage.runs)

    def _go_on(self, first: Callable[[], Outcome], slot: Succession, until: float) -> ShiftReport:
        """A shift that begins with `first`, which drives a run to its end."""
        try:
            outcome = first()
        except Exception:
            self._leave(slot)
            raise
        if isinstance(outcome, FenceLost | Unreached):
            return ShiftReport(outcome=outcome)
        refilled = crashed = 0
        while self._may_go_on(slot, until):
            if not self._has_next(slot):
                return ShiftReport(outcome=outcome, refilled=refilled, crashed=crashed)
            refilled += 1
            crashed += not self._carried(slot)
        self._leave(slot)
        return ShiftReport(outcome=outcome, refilled=refilled, crashed=crashed)

    def _request(self, slot: Succession, until: float) -> TakeRequest | None:
        """What a commit is to bring along: the next run of this slot or, if it takes no further, a lease to hand on."""
        return None if self._stopping() else self._dispatcher.request(redeem=self._may_go_on(slot, until))

    def _may_go_on(self, slot: Succession, until: float) -> bool:
        if self._engine.config.refill != "direct" or (slot.has_failed and self._is_tidied()):
            return False
        return self._engine.clock.monotonic() < until and not self._stopping()

    def _has_next(self, slot: Succession) -> bool:
        """Whether the slot has a next run: one that came along with the last commit, or else one that it can take. The
        run stays in the slot until it is driven, so that it is given back if this process is ended in between.
        """
        if slot.taken is None:
            slot.asked_at = self._engine.clock.monotonic()
            try:
                slot.taken = self._dispatcher.refill(slot.unmet())
            except StoreError:
                logger.warning("the slot could not claim its next run", exc_info=True)
            slot.heard_at = self._engine.clock.monotonic()
        if slot.taken is None:
            return False
        self._dispatcher.tell(slot.taken.batch)
        return True

    def _carried(self, slot: Succession) -> bool:
        """Drives a further run. False when its vehicle crashed: the runs after it are still to have their slot."""
        assert slot.taken is not None
        (lease,) = slot.taken.batch.leases
        try:
            self._drive_next(slot)
        except Exception:
            logger.exception("run %s, which this slot took on by itself, crashed its vehicle", lease.run_id)
            return False
        return True

    def _drive_next(self, slot: Succession) -> Outcome:
        asked_at, heard_at, taken = slot.asked_at, slot.heard_at, slot.pop()
        assert taken is not None
        return self._vehicle.drive(taken, asked_at=asked_at, heard_at=heard_at, succession=slot)

    def _leave(self, slot: Succession) -> None:
        """Leaves one lease behind for the slot that is now free or, when the worker is stopping, a nudge for other
        workers.
        """
        stopping = self._stopping()
        came = None if stopping else slot.pop_lease()
        give_back(slot, self._engine.storage.runs)
        if stopping:
            self._engine.waker.wake()
            return
        try:
            if came is not None:
                self._dispatcher.pass_on(came)
            else:
                self._dispatcher.hand_on(slot.unmet())
        except StoreError:
            logger.warning("the slot could not hand on", exc_info=True)
