"""How the parent of a prefork pool sees what its children hold: anonymous shared memory, made before the pool forks.

One place per child, under the index that the pool gives it. What a parent that was never told to share, a child beyond
the pool's maximum, or another kind of pool holds is seen by nobody, and renewed by its own process alone.
"""

from __future__ import annotations

import mmap

from billiard.process import current_process

from docket_celery.renewal import Held, Ledger
from docket_celery.worker.processes import this_process


class PoolLedger:
    """The ledger of one worker, and in each of its children the `Witness` that writes there."""

    def __init__(self) -> None:
        self._ledger: Ledger | None = None
        self._shown: Held | None = None

    def share(self, places: int) -> Ledger:
        """Makes the memory; to be called before the pool forks."""
        self._ledger = Ledger(memoryview(mmap.mmap(-1, Ledger.size(places))))
        return self._ledger

    def show(self, held: Held) -> None:
        """Only one claim at a time: the first. A node that drains other runs by itself is the exception."""
        if self._ledger is None or self._shown is not None:
            return
        place, process = place_of_this_process(), this_process()
        if place is None or place >= self._ledger.places or process is None:
            return
        self._ledger.write(place, process, held)
        self._shown = held

    def hide(self, held: Held) -> None:
        place = place_of_this_process()
        if self._shown is held and self._ledger is not None and place is not None:
            self._shown = None
            self._ledger.clear(place, held)


def place_of_this_process() -> int | None:
    """The index that a prefork pool gives to each of its living children, and to nobody else."""
    index = getattr(current_process(), "index", None)
    return index if isinstance(index, int) else None
