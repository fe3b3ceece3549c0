"""Keeps the claims of this process alive while their vehicles work: one batched statement about every TTL/3.

A claim is renewed only up to the deadline of what its vehicle is doing now: when a vehicle hangs, its claim expires
although this thread is well. Renewal never decides anything; the fence does.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from docket_celery.errors import StoreError
from docket_celery.storage.contracts.run_store import RunStore

logger = logging.getLogger("docket_celery")

GRACE = 10.0
"""Seconds beyond the deadline of the vehicle's present work during which its claim is still renewed."""
SOON = 1.0
"""Seconds after which claims that were locked by somebody else are tried again."""


class Held:
    """One claim being kept. The vehicle moves `until` (monotonic seconds) along with its work."""

    __slots__ = ("run_id", "token", "until")

    def __init__(self, run_id: str, token: str, until: float) -> None:
        self.run_id = run_id
        self.token = token
        self.until = until


class Renewer(Protocol):
    """Whoever keeps claims alive."""

    def hold(self, run_id: str, token: str, until: float) -> Held:
        """Begins to renew a claim, up to `until` plus a fixed grace."""
        ...

    def drop(self, held: Held) -> None:
        """Stops renewing it."""
        ...


class NoRenewal:
    """For hosts whose attempts all end well within the TTL."""

    def hold(self, run_id: str, token: str, until: float) -> Held:
        return Held(run_id, token, until)

    def drop(self, held: Held) -> None:
        return None


class Renewal:
    """Renews from a daemon thread that starts with the first claim, in the process that holds it (after any fork)."""

    def __init__(self, runs: RunStore, *, orphan_ttl: float, monotonic: Callable[[], float]) -> None:
        self._runs = runs
        self._interval = orphan_ttl / 3
        self._monotonic = monotonic
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._held: set[Held] = set()
        self._lock = threading.Lock()
        self._pause = threading.Event()
        self._thread: threading.Thread | None = None

    def hold(self, run_id: str, token: str, until: float) -> Held:
        if os.getpid() != self._pid:
            self._reset()
        held = Held(run_id, token, until)
        with self._lock:
            self._held.add(held)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="docket-renewal", daemon=True)
                self._thread.start()
        return held

    def drop(self, held: Held) -> None:
        with self._lock:
            self._held.discard(held)

    def _work(self) -> None:
        wait = self._interval
        while True:
            self._pause.wait(wait)
            missed = self._renew()
            wait = min(SOON, self._interval) if missed else self._interval

    def _renew(self) -> bool:
        """One round; whether some claim should be tried again soon."""
        now = self._monotonic()
        with self._lock:
            due = [held for held in self._held if held.until + GRACE > now]
        if not due:
            return False
        try:
            refreshed = self._runs.refresh_claims([(held.run_id, held.token) for held in due])
        except StoreError:
            logger.warning("could not renew %d claims; trying again", len(due), exc_info=True)
            return True
        return len(refreshed) < len(due)


@contextmanager
def holding(renewer: Renewer, run_id: str, token: str, until: float) -> Iterator[Held]:
    """Holds a claim for the length of a block."""
    held = renewer.hold(run_id, token, until)
    try:
        yield held
    finally:
        renewer.drop(held)
