"""A caller's own transaction: the driver's connection inside whatever the caller holds, and the moment of its commit.

Knows SQLAlchemy and Django by the shape of their objects alone and needs neither. Never begins, ends or changes what is
the caller's; that it leads to the database of the runs is the caller's business.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

Action: TypeAlias = Callable[[], None]

_PENDING: Final = "docket_celery.pending"
"""Where a SQLAlchemy session keeps what is to be done when it commits."""
_IDLE, _BROKEN = 0, 3
"""libpq's status of a connection without a transaction, and of one whose transaction a failed statement has broken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallersTransaction:
    """`connection` is for the store, which refuses another driver's. `committed` has an action done once the
    transaction is durable; where nobody can know when that is, it is not done, and the tick has to find the work.
    """

    connection: Any
    committed: Callable[[Action], None]


def joined(given: Any) -> CallersTransaction:
    """What to join: `given` is Django's connection, a SQLAlchemy session or connection, or already the driver's."""
    if hasattr(given, "ensure_connection") and hasattr(given, "on_commit"):
        return _django(given)
    if hasattr(given, "registry") and callable(given):  # SQLAlchemy's scoped session: the registry of the real ones.
        given = given()
    if _has_verb(given, "connection") and hasattr(given, "in_nested_transaction"):
        driver = _begun(given.connection())
        return CallersTransaction(connection=driver, committed=lambda action: _when_committed(given, driver, action))
    return _plain(_begun(given) if _has_verb(given, "exec_driver_sql") else given)


def _django(given: Any) -> CallersTransaction:
    given.ensure_connection()

    def committed(action: Action) -> None:
        # With autocommit switched off by hand, Django itself does not learn of the commit.
        if given.in_atomic_block or given.get_autocommit():
            given.on_commit(action)

    return CallersTransaction(connection=given.connection, committed=committed)


def _has_verb(given: Any, name: str) -> bool:
    """Whether it has a method to call at once; those of SQLAlchemy's asynchronous objects are none."""
    method = getattr(type(given), name, None)
    return inspect.isroutine(method) and not inspect.iscoroutinefunction(method)


def _when_committed(session: Any, driver: Any, action: Action) -> None:
    """One set of listeners for each session, however many runs it starts: SQLAlchemy drops none it was given."""
    pending: list[_Pending] | None = session.info.get(_PENDING)
    if pending is None:
        pending = session.info[_PENDING] = []
        event = importlib.import_module("sqlalchemy").event
        event.listen(session, "before_commit", _committing)
        event.listen(session, "after_commit", _committed)
        event.listen(session, "after_soft_rollback", _rolled_back)
        event.listen(session, "after_transaction_end", _ended)
    pending.append(_Pending(action=action, connection=driver, savepoints=tuple(_savepoints(session))))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pending:
    """An action, the driver's connection, and the savepoints it was asked for in: it goes when one of them is rolled
    back.
    """

    action: Action
    connection: Any
    savepoints: tuple[Any, ...]


def _savepoints(session: Any) -> Iterator[Any]:
    transaction = session.get_nested_transaction()
    while transaction is not None:
        yield transaction
        transaction = transaction.parent


def _committing(session: Any) -> None:
    """A transaction that a failed statement has broken: its commit rolls it back, and SQLAlchemy is not told."""
    if not session.in_nested_transaction():
        pending = session.info[_PENDING]
        pending[:] = [entry for entry in pending if _status(entry.connection) != _BROKEN]


def _committed(session: Any) -> None:
    if session.in_nested_transaction():
        return  # A savepoint is not durable.
    pending = list(session.info[_PENDING])
    session.info[_PENDING].clear()
    for entry in pending:
        # A session that has joined a transaction of its connection, as in tests, says that it commits and does not.
        if _status(entry.connection) == _IDLE:
            entry.action()


def _rolled_back(session: Any, savepoint: Any) -> None:
    pending = session.info[_PENDING]
    pending[:] = [entry for entry in pending if savepoint not in entry.savepoints]


def _ended(session: Any, transaction: Any) -> None:
    """However a whole transaction ended, by a rollback or with its session: what is left was not committed."""
    if transaction.parent is None:
        session.info[_PENDING].clear()


def _begun(given: Any) -> Any:
    """The driver's connection of a SQLAlchemy one, which now knows of a transaction: it commits no other."""
    given.exec_driver_sql("SELECT 1")
    return given.connection.driver_connection


def _plain(driver: Any) -> CallersTransaction:
    def committed(action: Action) -> None:
        # An autocommitting connection outside of a transaction has committed by itself.
        if _status(driver) == _IDLE:
            action()

    return CallersTransaction(connection=driver, committed=committed)


def _status(driver: Any) -> Any:
    """libpq's status of the transaction on a connection of psycopg; None for another driver's."""
    return getattr(getattr(driver, "info", None), "transaction_status", None)
