"""Connections: one pool per process and database, and what is done when one of them fails.

A pool is opened at first use, so also anew after a fork; a child neither uses nor closes what its parent opened. Every
operation is repeated once when its connection turns out to be broken: the store's statements are safe to repeat.
Nothing of correctness lives in a session, so that a transaction pooler may stand between.
"""

from __future__ import annotations

import atexit
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property
from typing import Any, Final, Self, TypeAlias, TypeVar

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import DictRow, dict_row
from psycopg_pool import ConnectionPool, PoolTimeout

from docket_celery.errors import ConfigError, RowRefused, SchemaMismatch, StoreError, StoreUnavailable
from docket_celery.holds import held
from docket_celery.storage.postgres.queries import Queries
from docket_celery.storage.postgres.rows import InstantLoader

T = TypeVar("T")
Context = TypeVar("Context", bound=psycopg.Connection[Any] | psycopg.Cursor[Any])

CONNECT_TIMEOUT: Final = 5
"""Seconds that opening a connection may take."""
CHECKOUT_TIMEOUT: Final = 10.0
"""Seconds to wait for a free connection of a busy pool."""
_OPTIONS: Final[dict[str, Any]] = {
    "autocommit": True,
    "row_factory": dict_row,
    "cursor_factory": psycopg.RawCursor,
    "connect_timeout": CONNECT_TIMEOUT,
}
_NETWORK: Final = {"tcp_user_timeout": 10_000, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
"""So that a server which no packet reaches any more is given up after some 10 s (the first is in ms), where the system
would wait for many minutes. What the URL says about these takes precedence.
"""
_POOL_NAMES: Final = "docket-"
_POLL: Final = 0.2
_AT_ONCE: Final = 1.0
"""Seconds within which a failure to connect came so fast that asking once more costs nothing."""
_REPEATS: Final = 3
"""How often a statement that lost against another transaction is tried again."""

_MISSING = (errors.UndefinedTable, errors.UndefinedColumn, errors.InvalidSchemaName)
_LOST_PLAN = (errors.InvalidSqlStatementName, errors.DuplicatePreparedStatement, errors.FeatureNotSupported)
_ENDED = (
    errors.AdminShutdown,
    errors.CrashShutdown,
    errors.IdleSessionTimeout,
    errors.IdleInTransactionSessionTimeout,
)
"""The server says so before it closes the connection, which may not look broken yet."""
_LOST_RACE = (errors.SerializationFailure, errors.DeadlockDetected, errors.LockNotAvailable)


class _SaidAnyway(logging.Filter):
    """Drops what a pool of ours logs on a failure to connect: `StoreUnavailable` says it, once and with its place."""

    def filter(self, record: logging.LogRecord) -> bool:
        subject = record.args[0] if isinstance(record.args, tuple) and record.args else None
        return not (isinstance(subject, str) and subject.startswith(_POOL_NAMES))


logging.getLogger("psycopg.pool").addFilter(_SaidAnyway())


class Session(psycopg.Connection[DictRow]):
    """A connection that says why it could not be opened: a pool connects elsewhere and tells only that it waited."""

    last_failure: tuple[float, str] | None = None

    @cached_property
    def statements(self) -> psycopg.Cursor[DictRow]:
        """The cursor that every statement of this store is run on: a new one for each costs half as much again."""
        return self.cursor(binary=True)

    @classmethod
    def connect(cls, *args: Any, **kwargs: Any) -> Self:
        try:
            return super().connect(*args, **kwargs)
        except psycopg.Error as error:
            cls.last_failure = time.monotonic(), str(error)
            raise


Work: TypeAlias = Callable[[Session, bool], T]
"""An operation. Its second argument says that it is repeated after an attempt whose outcome is unknown."""


class Database:
    """Runs operations on connections to one database, with the statements of one schema."""

    def __init__(
        self,
        url: str,
        *,
        schema: str,
        max_connections: int,
        now: Callable[[], datetime] | None = None,
        notify: bool = False,
    ) -> None:
        if max_connections < 1:
            raise ConfigError(f"max_connections must be at least 1, got {max_connections}")
        self.queries = Queries(schema, notify=notify)
        self.schema = schema
        self._url = url
        self._place = describe(url)
        given = conninfo_to_dict(url)
        self._options = {**{name: value for name, value in _NETWORK.items() if name not in given}, **_OPTIONS}
        self._max_connections = max_connections
        self._now = now
        self._prepare = True
        self._pools: dict[int, ConnectionPool[Session]] = {}

    def now(self) -> datetime | None:
        """The instant that pins the database's clock, or None to let it run."""
        return None if self._now is None else self._now()

    def execute(
        self,
        session: Session | psycopg.Cursor[DictRow],
        name: str,
        parameters: dict[str, Any],
        *,
        prepare: bool = True,
    ) -> psycopg.Cursor[DictRow]:
        """Runs the named statement on a session or a raw cursor; results come in binary form, and last until the next
        statement. Nothing is prepared on a caller's own connection.

        Whole numbers travel as text, whose type the statement says: the driver would choose one by each number's size,
        and every combination of types would be prepared as a statement of its own.
        """
        statement = self.queries.numbered(name)
        values = [str(value) if type(value) is int else value for value in map(parameters.__getitem__, statement.names)]
        if isinstance(session, Session):
            return session.statements.execute(statement.text, values, prepare=prepare and self._prepare)
        return session.execute(statement.text, values, prepare=False, binary=True)

    def run(self, work: Work[T]) -> T:
        """What `work` returns. Raises `StoreUnavailable` or `SchemaMismatch` for failures of the database itself.

        The session commits each statement by itself unless `work` opens a transaction.
        """
        again = fresh = False
        lost_races = 0
        while True:
            with held(), self._session(fresh) as session:
                try:
                    return work(session, again)
                except _LOST_PLAN as error:
                    if fresh:
                        raise self._translated(error) from error
                    fresh = True
                    self._forget_plans(session, error)
                except _LOST_RACE as error:
                    lost_races += 1
                    if lost_races > _REPEATS:
                        raise self._translated(error) from error
                except (psycopg.OperationalError, errors.IdleInTransactionSessionTimeout) as error:
                    if fresh or not (session.broken or isinstance(error, _ENDED)):
                        raise self._translated(error) from error
                    session.close()
                    again = fresh = True
                except psycopg.Error as error:
                    raise self._translated(error) from error

    def read(self, name: str, parameters: dict[str, Any], *, prepare: bool = True) -> list[DictRow]:
        """All rows of one statement."""
        return self.run(lambda session, _: self.execute(session, name, parameters, prepare=prepare).fetchall())

    def first(self, name: str, parameters: dict[str, Any]) -> DictRow | None:
        """The first row of one statement, if there is any."""
        return self.run(lambda session, _: self.execute(session, name, parameters).fetchone())

    def write(self, name: str, parameters: dict[str, Any]) -> int:
        """How many rows one statement has changed."""
        return self.run(lambda session, _: self.execute(session, name, parameters).rowcount)

    def dedicated(self) -> Session:
        """A session of the caller's own, which closes it. Raises `StoreUnavailable`."""
        try:
            return Session.connect(self._url, **self._options)
        except psycopg.Error as error:
            raise self._unavailable(str(error)) from error

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
            pool = self._pools.setdefault(process, self._new_pool())
            pool.open()
            atexit.register(self.close)  # Later, an exiting interpreter would wait in vain for the pool's threads.
        return pool

    def _new_pool(self) -> ConnectionPool[Session]:
        return ConnectionPool(
            self._url,
            connection_class=type("PooledSession", (Session,), {}),
            kwargs=self._options,
            configure=_configure,
            min_size=0,
            max_size=self._max_connections,
            open=False,
            name=f"{_POOL_NAMES}{self.schema}",
            reconnect_timeout=CONNECT_TIMEOUT,
            num_workers=1,
        )

    @contextmanager
    def _session(self, fresh: bool) -> Iterator[Session]:
        """A pooled session; or a fresh one, since after a restart of the server every pooled one may be broken."""
        pool = self._pool()
        pooled = None if fresh else self._checkout(pool)
        if pooled is not None:
            try:
                yield pooled
            finally:
                pool.putconn(pooled)
            return
        session = self._connect(pool)
        try:
            yield session
        finally:
            session.close()

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
                    raise self._unavailable(failure[1]) from error
                if time.monotonic() - asked > CHECKOUT_TIMEOUT:
                    reason = f"none of {self._max_connections} connections became free in {CHECKOUT_TIMEOUT:g} s"
                    raise self._unavailable(reason) from error

    def _connect(self, pool: ConnectionPool[Session]) -> Session:
        try:
            session = pool.connection_class.connect(self._url, **self._options)
        except psycopg.Error as error:
            raise self._unavailable(str(error)) from error
        _configure(session)
        return session

    def _forget_plans(self, session: Session, error: psycopg.Error) -> None:
        """After a migration the plans of a session are stale: a new one has none. Behind a transaction pooler, where
        the next transaction may meet any server session, statements are not prepared any more.
        """
        session.close()
        if not isinstance(error, errors.FeatureNotSupported):
            self._prepare = False

    def _translated(self, error: psycopg.Error) -> StoreError:
        if isinstance(error, _MISSING):
            return SchemaMismatch(
                f"schema {self.schema!r} of {self._place} is missing or too old ({_first_line(error)}); "
                "run `celery -A proj docket migrate`"
            )
        if isinstance(error, psycopg.DataError | errors.ProgramLimitExceeded):
            return RowRefused(
                f"PostgreSQL at {self._place} cannot hold a value ({error.sqlstate}): {_first_line(error)}"
            )
        if isinstance(error, psycopg.IntegrityError):
            return StoreError(f"PostgreSQL at {self._place} refuses a row ({error.sqlstate}): {_first_line(error)}")
        return self._unavailable(f"{error.sqlstate or 'connection lost'}: {error}")

    def _unavailable(self, reason: str) -> StoreUnavailable:
        return StoreUnavailable(f"PostgreSQL at {self._place}: {reason.strip()}")


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
    """Makes the connection or cursor read instants as this store does."""
    context.adapters.register_loader("timestamptz", InstantLoader)
    return context


def _configure(session: Session) -> None:
    """Makes a new connection ours. Where a pooler stands between, nothing is prepared on it: its transactions may meet
    different server sessions, in which the same name stands for another statement.
    """
    adapt(session)
    if is_pooled(session):
        session.prepare_threshold = None


def is_pooled(session: Session) -> bool:
    """Whether a pooler stands between: it gives itself away by the number of the server process, which at connecting it
    made up.
    """
    (row,) = session.execute("SELECT pg_backend_pid() AS pid").fetchall()
    return bool(row["pid"] != session.info.backend_pid)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
