"""Renews in the place of processes that are at work and do not get to it, since a call into C holds the interpreter.

Looks often and does nothing as long as everybody renews in time. A process that is dead or stopped is left alone, so
that its claim expires as it should, and so is a vehicle that is overdue. Holds no claim and ends with its process.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from docket_celery.daemons import begin_daemon
from docket_celery.errors import StoreError
from docket_celery.renewal.ledger import Entry, Holder, Ledger
from docket_celery.storage.contracts.run_store import RunStore

logger = logging.getLogger("docket_celery")

LATE: Final = 5 / 12
"""Part of the TTL after which a claim should have been renewed again: its own process does so after a third."""
LOOKS: Final = 12
"""Looks per TTL. A claim is renewed in time even if the statement that does it has to wait for a third of the TTL."""


class StandIn:
    """Renews what a ledger shows. `is_at_work` says whether a process is alive and neither stopped nor frozen."""

    def __init__(
        self,
        runs: RunStore,
        ledger: Ledger,
        *,
        is_at_work: Callable[[Holder], bool],
        orphan_ttl: float,
        monotonic: Callable[[], float],
    ) -> None:
        self._runs = runs
        self._ledger = ledger
        self._is_at_work = is_at_work
        self._late = orphan_ttl * LATE
        self._interval = orphan_ttl / LOOKS
        self._monotonic = monotonic

    def start(self) -> None:
        """Looks from a daemon thread from now on. Nothing stops it but the end of the process: renewal ends last."""
        begin_daemon(self._work, "docket-stand-in")

    def look(self) -> None:
        """One look, and one statement if somebody is late."""
        now = self._monotonic()
        late = [entry.held for entry in self._ledger.entries() if self._is_needed(entry, now)]
        if not late:
            return
        refreshed = self._runs.refresh_claims([(held.run_id, held.token) for held in late])
        for held in late:
            if held.run_id in refreshed:
                held.renewed_at = now
                logger.info("run %s: its process is late to renew its claim; renewed in its place", held.run_id)

    def _is_needed(self, entry: Entry, now: float) -> bool:
        held = entry.held
        return now >= held.renewed_at + self._late and not held.is_overdue(now) and self._is_at_work(entry.holder)

    def _work(self) -> None:
        pause = threading.Event()
        while True:
            pause.wait(self._interval)
            try:
                self.look()
            except StoreError:
                logger.warning("could not renew claims in the place of their processes; trying again", exc_info=True)
            except Exception:
                logger.exception("a look at the claims of this pool failed; trying again")
