"""Sessions: one pool of connections per process and database, and how a connection is made ours.

A pool is opened at first use, so also anew after a fork; a child neither uses nor closes what its parent opened.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import socket
import time
from datetime import timedelta
from functools import cached_property
from typing import Any, Final, Self, TypeVar

import psycopg
from psycopg import capabilities
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import DictRow, dict_row
from psycopg_pool import ConnectionPool, PoolTimeout

from docket_celery.errors import ConfigError, StoreUnavailable
from docket_celery.storage.postgres.parameters import SpanDumper
from docket_celery.storage.postgres.rows import InstantLoader
from docket_celery.storage.postgres.watch import WATCH

Context = TypeVar("Context", bound=psycopg.Connection[Any] | psycopg.Cursor[Any])

CONNECT_TIMEOUT: Final = 5
"""Seconds that opening a connection may take."""
CHECKOUT_TIMEOUT: Final = 10.0
"""Seconds to wait for a free connection of a busy pool."""
ENCODING: Final = "UTF8"
"""The client's, whatever the server, the role or the environment would have: every name and value can be sent then, and
what comes back is text, where a database in SQL_ASCII would send bytes.
"""
_OPTIONS: Final[dict[str, Any]] = {
    "autocommit": True,
    "row_factory": dict_row,
    "cursor_factory": psycopg.RawCursor,
    "connect_timeout": CONNECT_TIMEOUT,
    "client_encoding": ENCODING,
}
_NETWORK: Final = {"tcp_user_timeout": 10_000, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
"""So that a server which no packet reaches any more is given up after some 10 s (the first is in ms), where the system
would wait for many minutes. What the URL says about these takes precedence.
"""
_NEEDED: Final = b"""
    SELECT set_config(name, needed, false)
    FROM (VALUES ('default_transaction_isolation', 'read committed'), ('array_nulls', 'on')) AS setting (name, needed)
    WHERE current_setting(name) <> needed
"""
"""What the statements are written for, whatever a database or role has. Under a stricter level those that meet fail, no
less correct, instead of waiting for each other; and without its NULLs an array would hold words in their place.
"""
_POOL_NAMES: Final = "docket-"
_POLL: Final = 0.2
_AT_ONCE: Final = 1.0
"""Seconds within which a failure to connect came so fast that asking once more costs nothing."""


class _SaidAnyway(logging.Filter):
    """Drops what a pool of ours logs on a failure to connect: `StoreUnavailable` says it, once and with its place."""

    def filter(self, record: logging.LogRecord) -> bool:
        # The text quotes the pool's name; that it is among the arguments too is so with newer pools only.
        said = record.getMessage()
        return not any(f"{quote}{_POOL_NAMES}" in said for quote in "'\"")


logging.getLogger("psycopg.pool").addFilter(_SaidAnyway())


class Session(psycopg.Connection[DictRow]):
    """A connection that says why it could not be opened: a pool connects elsewhere and tells only that it waited. It is
    open once it is ours: a pooler accepts us while its server is down.
    """

    last_failure: tuple[float, str] | None = None
    home: ConnectionPool[Self] | None = None
    """The pool that it came from, if any."""
    tells: bool = True
    """Whether its statements tell the listener of what they make due."""

    @cached_property
    def statements(self) -> psycopg.Cursor[DictRow]:
        """The cursor that every statement of this store is run on: a new one for each costs half as much again."""
        return self.cursor(binary=True)

    @classmethod
    def connect(cls, *args: Any, **kwargs: Any) -> Self:
        WATCH.start()
        session = None
        try:
            session = super().connect(*args, **kwargs)
            WATCH.begin(session)
            _configure(session)
        except psycopg.Error as error:
            cls.last_failure = time.monotonic(), str(error)
            if session is not None:
                session.close()
            raise
        finally:
            if session is not None:
                WATCH.end(session)
        return session

    def cancel_statement(self) -> bool:
        """Implements `Watched`. An old libpq cannot do so within a bounded time."""
        if not capabilities.has_cancel_safe():
            return False
        try:
            self.cancel_safe(timeout=CONNECT_TIMEOUT)
        except psycopg.Error:
            return False
        return True

    def cut(self) -> None:
        """Ends a session from another thread: whoever waits on its socket wakes up, and the server sees it closed."""
        with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(self.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)


class Sessions:
    """Sessions of one database. Their errors are `StoreUnavailable`, and name the place."""

    def __init__(self, url: str, *, name: str, max_connections: int) -> None:
        if max_connections < 1:
            raise ConfigError(f"max_connections must be at least 1, got {max_connections}")
        self._url = url
        self._name = name
        self.place = describe(url)
        given = conninfo_to_dict(url)
        self._options = {**{name: value for name, value in _NETWORK.items() if name not in given}, **_OPTIONS}
        self._max_connections = max_connections
        self._pools: dict[int, ConnectionPool[Session]] = {}

    def take(self, *, fresh: bool = False) -> Session:
        """A pooled session, to be given back; or a fresh one, since after a restart of the server every pooled one may
        be broken.
        """
        pool = self._pool()
        session = None if fresh else self._checkout(pool)
        if session is None:
            session = self._connect(pool)
        else:
            session.home = pool
        WATCH.begin(session)
        return session

    def give_back(self, session: Session) -> None:
        """The end of what `take` began."""
        WATCH.end(session)
        if session.home is None:
            session.close()
        else:
            session.home.putconn(session)

    def dedicated(self) -> Session:
        """A session of the caller's own, which closes it."""
        try:
            return Session.connect(self._url, **self._options)
        except psycopg.Error as error:
            raise self.unavailable(str(error)) from error

    def unavailable(self, reason: str) -> StoreUnavailable:
        """The error that says so of this place."""
        return StoreUnavailable(f"PostgreSQL at {self.place}: {reason.strip()}")

    def close(self) -> None:
        """Closes this process's connections. A later operation opens new ones."""
        atexit.unregister(self.close)
        pool = self._pools.pop(os.getpid(), None)
        if pool is not None:
            pool.close()

    def _pool(self) -> ConnectionPool[Session]:
        # No lock: one that another thread held at a fork would stay held in the child for ever.
        process = os.getpid()
        pool = self._pools.get(process)
        if pool is None:
            opened = self._new_pool()
            opened.open()  # Before another thread can see it.
            pool = self._pools.setdefault(process, opened)
            if pool is opened:
                atexit.register(self.close)  # Later, an exiting interpreter would wait in vain for the pool's threads.
            else:
                opened.close()
        return pool

    def _new_pool(self) -> ConnectionPool[Session]:
        return ConnectionPool(
            self._url,
            connection_class=type("PooledSession", (Session,), {}),
            kwargs=self._options,
            min_size=0,
            max_size=self._max_connections,
            open=False,
            name=f"{_POOL_NAMES}{self._name}",
            reconnect_timeout=CONNECT_TIMEOUT,
            num_workers=1,
        )

    def _checkout(self, pool: ConnectionPool[Session]) -> Session | None:
        """A pooled session. Waits for a busy pool, but not for a database that has just refused a connection.

        None when the pool met a refusal at once: it may have been for that connection alone, as when the server ends
        all sessions, those being opened too. A pool would only try again after a pause.
        """
        asked = time.monotonic()
        while True:
            try:
                return pool.getconn(timeout=_POLL)
            except PoolTimeout as error:
                failure = pool.connection_class.last_failure
                if failure is not None and failure[0] >= asked:
                    if failure[0] - asked < _AT_ONCE:
                        return None
                    raise self.unavailable(failure[1]) from error
                if time.monotonic() - asked > CHECKOUT_TIMEOUT:
                    reason = f"none of {self._max_connections} connections became free in {CHECKOUT_TIMEOUT:g} s"
                    raise self.unavailable(reason) from error

    def _connect(self, pool: ConnectionPool[Session]) -> Session:
        try:
            return pool.connection_class.connect(self._url, **self._options)
        except psycopg.Error as error:
            raise self.unavailable(str(error)) from error


def describe(url: str) -> str:
    """Where the URL leads, for messages: host, port and database name, never a password."""
    try:
        parts = conninfo_to_dict(url)
    except psycopg.Error:
        # The driver's own message may quote the URL, and with it a password.
        raise ConfigError("docket_database_url is not a PostgreSQL URL or connection string") from None
    host = parts.get("host") or parts.get("hostaddr") or "the local socket"
    return f"{host}:{parts.get('port') or 5432}, database {parts.get('dbname') or parts.get('user') or 'by default'}"


def adapt(context: Context) -> Context:
    """Makes the connection or cursor read instants and write spans of time as this store does."""
    context.adapters.register_loader("timestamptz", InstantLoader)
    context.adapters.register_dumper(timedelta, SpanDumper)
    return context


def _configure(session: Session) -> None:
    """Makes a new connection ours. Where a pooler stands between, nothing is prepared on it: its transactions may meet
    different server sessions, in which the same name stands for another statement. Nothing is set there either.
    """
    adapt(session)
    session.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    if is_pooled(session):
        session.prepare_threshold = None
    else:
        session.execute(_NEEDED)


def is_pooled(session: Session) -> bool:
    """Whether a pooler stands between: it gives itself away by the number of the server process, which at connecting it
    made up.
    """
    (row,) = session.execute("SELECT pg_backend_pid() AS pid").fetchall()
    return bool(row["pid"] != session.info.backend_pid)
