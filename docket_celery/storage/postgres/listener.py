"""Hears that a commit has made a run due: LISTEN, on a session and in a thread of its own.

For wakes by those who have no broker or commit a transaction of their own; speed only, the tick finds all of it anyway.
Of all listeners of a schema one has the turn, a lock that ends with its session; the others ask for it again and again.
Whoever gets it wakes once at once, for what was told while nobody listened. Decides and reads nothing else.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Final

import psycopg
from psycopg.pq import ExecStatus

from docket_celery.clock import Jitter, RandomJitter
from docket_celery.daemons import begin_daemon
from docket_celery.storage.contracts.fleet import Listening
from docket_celery.storage.postgres.database import Database
from docket_celery.storage.postgres.locks import advisory_key
from docket_celery.storage.postgres.sessions import Session, is_pooled

logger = logging.getLogger("docket_celery")

QUIET: Final = 10.0
"""Seconds of silence after which the session is asked whether it is still there."""
ANSWER_LIMIT: Final = 5.0
"""Seconds within which it must answer; a link that only looks open is given up then."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds before the next try to connect, doubled with each failure; up to as much again is added at random."""
SPREAD: Final = 0.25
"""Part of the interval that is added at random, so that those who wait for the turn do not fall into step."""
STOP_LIMIT: Final = 1.0
"""Seconds that stopping may take. The thread is a daemon: a connection that is being opened holds nobody up."""

_listeners: weakref.WeakSet[Listener] = weakref.WeakSet()


class Listener:
    """Calls `heard`, which must be bounded and never raise, in its own thread. Can be started again after a stop.

    `interval` is how many seconds pass before the turn is asked for again, by one that does not have it.
    """

    def __init__(
        self,
        url: str,
        *,
        schema: str,
        heard: Callable[[], None],
        interval: float,
        jitter: Jitter | None = None,
    ) -> None:
        self._database = Database(url, schema=schema, max_connections=1)
        self._key = str(advisory_key("listen", schema)).encode()
        self._heard = heard
        self._interval = interval
        self._jitter = jitter or RandomJitter()
        self._impossible = False
        self._failures = 0
        self._stopping = threading.Event()
        self._session: Session | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Returns at once. Does nothing once a pooler has been found."""
        if self._impossible or self._thread is not None:
            return
        self._stopping = threading.Event()
        self._thread = begin_daemon(partial(self._work, self._stopping), "docket-listener")

    def stop(self) -> None:
        """Gives the turn to the others. Bounded, whatever the server does."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._stopping.set()
        session = self._session
        if session is not None:
            session.cut()
        thread.join(STOP_LIMIT)

    def _work(self, stopping: threading.Event) -> None:
        pause = 0.0
        while not stopping.wait(pause):
            try:
                with contextlib.closing(self._database.sessions.dedicated()) as session:
                    self._serve(session, stopping)
            except Exception as error:
                if not stopping.is_set():
                    logger.warning("lost the session that listens for wakes, trying again: %s", error)
            if self._impossible:
                return
            pause = min(FIRST_PAUSE * 2.0**self._failures, LONGEST_PAUSE) * (1.0 + self._jitter.fraction())
            self._failures = min(self._failures + 1, 10)

    def _serve(self, session: Session, stopping: threading.Event) -> None:
        """Waits for the turn and then for notifications, until the session ends or is cut."""
        if is_pooled(session):
            self._impossible = True
            logger.warning(
                "docket_listen is off in this worker: docket_database_url leads to a pooler, behind which no session "
                "can listen; wakes by others wait for the tick"
            )
            return
        if stopping.is_set():
            return
        self._session = session
        _listeners.add(self)
        try:
            line = _Line(self._database, session, stopping)
            line.ask("notice_dead_peers")
            while line.ask("take_turn", self._key) != b"t":
                self._failures = 0
                line.hears(self._interval * (1.0 + SPREAD * self._jitter.fraction()))
            self._failures = 0
            line.ask("listen")
            self._heard()
            while True:
                if line.hears(QUIET):
                    self._heard()
                else:
                    line.ask("still_there")
        finally:
            if self._session is session:  # A successor may have begun, when stopping this one took too long.
                self._session = None


class _Line:
    """A session whose answers are waited for no longer than `ANSWER_LIMIT`. Raises when it is lost, or cut."""

    def __init__(self, database: Database, session: Session, stopping: threading.Event) -> None:
        self._queries = database.queries
        self._pgconn = session.pgconn
        self._socket = session.fileno()
        self._stopping = stopping

    def ask(self, name: str, *values: bytes) -> bytes | None:
        """The first value of a statement's one row."""
        self._pgconn.send_query_params(self._queries.numbered(name).text, list(values))  # Older drivers take no other.
        until = time.monotonic() + ANSWER_LIMIT
        while self._pgconn.flush() or self._pgconn.is_busy():
            if not self._reads(until - time.monotonic()):
                raise TimeoutError(f"the server has not answered for {ANSWER_LIMIT:g} s")
        answer = None
        while (result := self._pgconn.get_result()) is not None:
            if result.status not in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
                raise psycopg.OperationalError(result.error_message.decode(errors="replace").strip())
            answer = result.get_value(0, 0) if result.nfields else None
        return answer

    def hears(self, seconds: float) -> bool:
        """Whether a notification came within this time."""
        until = time.monotonic() + seconds
        while not self._is_told():
            if not self._reads(until - time.monotonic()):
                return False
        return True

    def _is_told(self) -> bool:
        told = False
        while self._pgconn.notifies() is not None:
            told = True
        return told

    def _reads(self, seconds: float) -> bool:
        """Whether something came within this time, and was taken in."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            came = bool(selector.select(max(seconds, 0.0)))
        if self._stopping.is_set():
            raise psycopg.OperationalError("stopped")
        if came:
            self._pgconn.consume_input()
        return came


def listening_state(url: str, *, schema: str) -> Listening:
    """Asks the database whether a listener has the turn. Raises `StoreUnavailable`."""
    database = Database(url, schema=schema, max_connections=1)
    with contextlib.closing(database.sessions.dedicated()) as session:
        if is_pooled(session):
            return "pooled"
        (row,) = database.execute(session, "has_listener", {"key": advisory_key("listen", schema)}).fetchall()
        return "listening" if row["found"] else "nobody"


def _leave_to_the_parent() -> None:
    """A forked child closes its copies of the sockets: they would keep a turn alive after its owner's death."""
    for listener in list(_listeners):
        # Forgotten here, or a child of this child would close whatever has the socket's number by then.
        session, listener._session = listener._session, None
        if session is not None:
            with contextlib.suppress(OSError, psycopg.Error):
                os.close(session.fileno())


os.register_at_fork(after_in_child=_leave_to_the_parent)
