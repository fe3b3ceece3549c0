"""Renews the claims of this process: one batched statement about every TTL/3.

A claim is renewed only up to the deadline of what its vehicle is doing now: when a vehicle hangs, its claim expires
although this thread is well. A claim that it finds gone is marked, so that its vehicle need not start work that could
never be committed.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import Final

from docket_celery.daemons import begin_daemon
from docket_celery.errors import ClaimLost, StoreError
from docket_celery.renewal.held import Held, Witness
from docket_celery.storage.contracts.run_store import RunStore

logger = logging.getLogger("docket_celery")

SOON: Final = 1.0
"""Seconds after which claims that were left out of a round are tried again."""
MISSES_BEFORE_ASKING: Final = 2
"""Rounds that may leave a claim out before it is asked for by itself: its row may only have been locked."""


class Renewal:
    """Renews from a daemon thread that starts with the first claim, in the process that holds it (after any fork)."""

    def __init__(
        self,
        runs: RunStore,
        *,
        orphan_ttl: float,
        monotonic: Callable[[], float],
        witness: Witness | None = None,
    ) -> None:
        self._runs = runs
        self._interval = orphan_ttl / 3
        self._monotonic = monotonic
        self._witness = witness
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._held: set[Held] = set()
        self._lock = threading.Lock()
        self._pause = threading.Event()
        self._thread: threading.Thread | None = None

    def hold(self, held: Held) -> None:
        if os.getpid() != self._pid:
            self._reset()
        with self._lock:
            for earlier in self._held:
                # Whoever redeems a run takes it from everybody before, in this process as in any other.
                earlier.lost = earlier.lost or earlier.run_id == held.run_id
            self._held.add(held)
            if self._witness is not None:
                self._witness.show(held)
            if self._thread is None:
                self._thread = begin_daemon(self._work, "docket-renewal")

    def drop(self, held: Held) -> None:
        with self._lock:
            self._held.discard(held)
            if self._witness is not None:
                self._witness.hide(held)

    def renew(self) -> bool:
        """One round; whether some claim should be tried again soon."""
        now = self._monotonic()
        with self._lock:
            due = [held for held in self._held if not held.lost and not held.is_overdue(now)]
        if not due:
            return False
        try:
            refreshed = self._runs.refresh_claims([(held.run_id, held.token) for held in due])
        except StoreError:
            logger.warning("could not renew %d claims; trying again", len(due), exc_info=True)
            return True
        missed = [held for held in due if not self._noted(held, held.run_id in refreshed, now)]
        for held in missed:
            if held.misses >= MISSES_BEFORE_ASKING:
                self._ask(held)
        return any(held.misses and not held.lost for held in missed)

    def _work(self) -> None:
        wait = self._interval
        while True:
            self._pause.wait(wait)
            try:
                again = self.renew()
            except Exception:
                logger.exception("a round of renewals failed; trying again")
                again = True
            wait = min(SOON, self._interval) if again else self._interval

    def _noted(self, held: Held, renewed: bool, sent_at: float) -> bool:
        if renewed:
            held.renewed_at, held.misses = sent_at, 0
        else:
            held.misses += 1
        return renewed

    def _ask(self, held: Held) -> None:
        """Asks for one claim and waits for its row: now it is either renewed or known to be lost."""
        sent_at = self._monotonic()
        try:
            self._runs.refresh_claim(held.run_id, held.token)
        except ClaimLost:
            with self._lock:
                held.lost = held in self._held
            if held.lost:
                logger.warning("run %s: the claim was lost while its vehicle was at work", held.run_id)
        except StoreError:
            logger.warning("run %s: could not ask for its claim; trying again", held.run_id, exc_info=True)
        else:
            self._noted(held, True, sent_at)
