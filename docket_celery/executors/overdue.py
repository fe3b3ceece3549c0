"""The books on helper threads: which of them still run although their attempts are over.

A thread cannot be ended from outside, and `Thread.is_alive()` is wrong after an interrupted `join` before Python 3.13,
so each helper reports its own end.
"""

from __future__ import annotations

import os
import threading


class Helper:
    """One thread or greenlet that carries out attempts."""

    __slots__ = ("ended",)

    def __init__(self) -> None:
        self.ended = False


class Overdue:
    """Counts the helpers of this process that were left behind at a deadline and have not ended yet."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._left: set[Helper] = set()

    def leave(self, helper: Helper) -> None:
        """Notes that nobody waits for `helper` any more."""
        self._own_process()
        with self._lock:
            if not helper.ended:
                self._left.add(helper)

    def end(self, helper: Helper) -> None:
        """Notes that `helper` is about to end; it calls this itself, last."""
        with self._lock:
            helper.ended = True
            self._left.discard(helper)

    @property
    def count(self) -> int:
        """How many of them still run."""
        self._own_process()
        return len(self._left)

    def _own_process(self) -> None:
        """Threads do not survive a fork; a child begins with empty books."""
        if os.getpid() != self._pid:
            self._reset()
