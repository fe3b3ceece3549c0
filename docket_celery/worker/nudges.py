"""How often a process nudges the fleet: at once after a quiet spell, and once more for all that came meanwhile.

Each nudge opens a window. All who ask inside it are answered by one nudge when it ends, so that the end of a burst is
never left to the tick. A window that many fell into is followed by one of twice its length: ten thousand starts cost
a handful of nudges, while a few in a second are passed on one by one. Who answers nudges with scans keeps windows of
the same kind, which are long only after scans in vain. Knows neither broker nor database.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Protocol

from docket_celery.holds import held

logger = logging.getLogger("docket_celery")

SHORTEST = 0.05
"""Seconds of the first window."""
LONGEST = 1.0
"""Seconds that a window grows to: the shortest interval between two ticks, so that waiting for it costs no more."""
CROWD = 10
"""Requests within one window that make the next one longer."""


class Alarm(Protocol):
    """A call that is set for later."""

    def cancel(self) -> None: ...


def by_thread(seconds: float, call: Callable[[], None]) -> Alarm:
    """Sets a call in a thread of this process."""
    timer = threading.Timer(seconds, call)
    timer.name = "docket-nudge"
    timer.daemon = True
    timer.start()
    return timer


class Windows:
    """The windows themselves: after one that `crowd` requests fell into comes one of twice its length. `ends_at` is the
    end of the present one, in monotonic seconds.

    `enter` and `shorten` may be called by several threads at once; whoever calls the others holds a lock of its own.
    """

    def __init__(self, monotonic: Callable[[], float], *, crowd: int = CROWD) -> None:
        self._monotonic = monotonic
        self._crowd = crowd
        self._lock = threading.Lock()
        self._length = SHORTEST
        self._inside = 0
        self.ends_at = float("-inf")

    def enter(self) -> float:
        """Opens a window and answers 0, or how many seconds of the present one are left."""
        with self._lock:
            now = self._monotonic()
            if now < self.ends_at:
                self.count()
                return self.ends_at - now
            self.open(now)
            return 0.0

    def shorten(self) -> None:
        """Makes the present window one of the shortest: what was asked for was worth it."""
        with self._lock:
            self.ends_at -= self._length - SHORTEST
            self._length = SHORTEST

    def count(self) -> None:
        """Somebody asked inside the window."""
        self._inside += 1

    def open(self, now: float) -> None:
        """Opens the window that begins `now`, in monotonic seconds."""
        self._length = min(self._length * 2, LONGEST) if self._inside >= self._crowd else SHORTEST
        self._inside = 0
        self.ends_at = now + self._length


class Nudges:
    """Decides for one process when `send` is called. `send` must be bounded and never raise."""

    def __init__(
        self,
        send: Callable[[], object],
        *,
        monotonic: Callable[[], float],
        later: Callable[[float, Callable[[], None]], Alarm] = by_thread,
    ) -> None:
        self._send = send
        self._monotonic = monotonic
        self._later = later
        self._lock = threading.Lock()
        self._windows = Windows(monotonic)
        self._alarm: Alarm | None = None
        self._due = float("inf")

    def ask(self, *, after: float = 0.0) -> None:
        """One nudge, now or in so many seconds; together with others when one has just been sent."""
        with held(), self._lock:
            now = self._monotonic()
            due = now + after
            if due < self._windows.ends_at:
                self._windows.count()
                due = self._windows.ends_at
            if due > now:
                self._set(due, now)
                return
            self._windows.open(now)
        self._send()

    def flush(self) -> None:
        """Sends at once what is set for later."""
        with held(), self._lock:
            if self._alarm is None:
                return
            self._alarm.cancel()
            self._forget()
        self._send()

    def _rang(self, due: float) -> None:
        with self._lock:
            now = self._monotonic()
            if self._due != due:
                return  # Replaced or flushed while it was about to ring.
            self._forget()
            if now < self._windows.ends_at:
                self._set(self._windows.ends_at, now)
                return
            self._windows.open(now)
        self._send()

    def _set(self, due: float, now: float) -> None:
        """Keeps one alarm, at the earliest instant asked for. What is later is asked for again by the scan itself."""
        if self._alarm is not None:
            if self._due <= due:
                return
            self._alarm.cancel()
        try:
            alarm = self._later(due - now, partial(self._rang, due))
        except RuntimeError as error:  # No thread can be had for it.
            logger.warning("a nudge in %.2f s is left to the tick: %s", due - now, error)
            self._forget()
            return
        self._due, self._alarm = due, alarm
        _pending.add(self)

    def _forget(self) -> None:
        self._alarm, self._due = None, float("inf")
        _pending.discard(self)


_pending: weakref.WeakSet[Nudges] = weakref.WeakSet()


@atexit.register
def flush_all() -> None:
    """A script that ends inside a window leaves nothing to the tick."""
    for nudges in list(_pending):
        nudges.flush()


# What the parent has set for later, its own thread sends; and that thread may have held the lock at the fork.
os.register_at_fork(after_in_child=_pending.clear)
