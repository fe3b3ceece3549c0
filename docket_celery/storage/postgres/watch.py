"""Gives up operations on the database that take far too long, from a thread of its own.

What stands between may keep up a link to a server that it has lost: the network never gives that up, and whoever waits
for an answer would wait for ever. To look in each exchange would cost every step of a run some hundredths of its time.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

from docket_celery.daemons import begin_daemon

logger = logging.getLogger("docket_celery")

LONGEST_OPERATION: Final = 90.0
"""Seconds. Nothing of this store takes nearly as long, unless a table is locked or a start enormous. Less than a tick
may take, so that no process is ended for it.
"""
_INTERVAL: Final = 5.0
"""Seconds between two looks."""


class Watched(Protocol):
    """What an operation waits on."""

    def cancel_statement(self) -> bool:
        """Asks the server, by another connection, to cancel what it does here; whether the server could be told."""
        ...

    def cut(self) -> None:
        """Ends the session, so that whoever waits on it meets a broken connection."""
        ...


class Watch:
    """Knows since when each session has been in use. The operation of one that is cut is repeated on a new one, as
    after any loss of a connection.
    """

    def __init__(
        self,
        *,
        longest: float = LONGEST_OPERATION,
        interval: float = _INTERVAL,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._longest = longest
        self._interval = interval
        self._monotonic = monotonic
        self.forget()

    def forget(self) -> None:
        """A forked child has none of its parent's operations, and no thread yet."""
        self._since: dict[Watched, float] = {}
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Begins the thread, once in a process."""
        with self._lock:
            if self._thread is None:
                self._thread = begin_daemon(self._keep_looking, "docket-watch")

    def begin(self, session: Watched) -> None:
        """The session is in use from now on."""
        self._since[session] = self._monotonic()

    def end(self, session: Watched) -> None:
        """It is not in use any more."""
        self._since.pop(session, None)

    def look(self) -> None:
        """Cuts every session that has been in use for too long. Its statement is cancelled first: where it waits for a
        lock, each repetition would else keep one more server process.
        """
        now = self._monotonic()
        late = [(session, since) for session, since in list(self._since.items()) if now - since > self._longest]
        can_be_told = True
        for session, since in late:
            if not self._is_still(session, since):
                continue
            logger.warning("PostgreSQL has not answered for %g s: the connection is given up", self._longest)
            can_be_told = can_be_told and session.cancel_statement()
            if self._is_still(session, since):
                session.cut()
                self._since.pop(session, None)

    def _is_still(self, session: Watched, since: float) -> bool:
        """Whether the session is still in that use. To cancel a statement may take seconds, in which others end; and
        once it is cancelled, its session is given back, and may be in its next use already.
        """
        return self._since.get(session) == since

    def _keep_looking(self) -> None:
        while True:
            time.sleep(self._interval)
            self.look()


WATCH: Final = Watch()
"""Over all sessions of this process."""

os.register_at_fork(after_in_child=WATCH.forget)
