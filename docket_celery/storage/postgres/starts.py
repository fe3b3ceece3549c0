"""Inserting runs in PostgreSQL: one at a time or many in one statement, on our connection or within a caller's.

Never commits for a caller: on a connection that was given, everything happens inside a savepoint of its transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final, TypeAlias, TypeVar

import psycopg
from msgspec.structs import replace
from psycopg import errors
from psycopg.pq import TransactionStatus
from psycopg.rows import DictRow, dict_row

from docket_celery.errors import InvalidCommit, InvalidInput, KeyConflict, NotFound, StoreUnavailable
from docket_celery.storage.contracts.rules import check_initial, missing_versions, owner_of, stamped
from docket_celery.storage.contracts.values import InitialRun, Scope, Started
from docket_celery.storage.postgres.parameters import array, of_initial, of_initials
from docket_celery.storage.postgres.rows import run_of
from docket_celery.storage.postgres.sessions import Session, adapt
from docket_celery.storage.postgres.taking import PostgresTaking

T = TypeVar("T")
SessionOrCursor: TypeAlias = Session | psycopg.Cursor[DictRow]

_KEY_ROUNDS: Final = 10
"""How often a start looks for the holder of its key again, when that was pruned in between."""
_KEY_WAIT: Final = "1s"
"""How long a start waits at a time for a rival's transaction that has its key. In between others get its connection:
whoever leaves such a transaction open must not hold up all that this process does.
"""
_PRUNED: Final = "a run that was started by an attempt whose reply was lost has been pruned since"


class PostgresStarts(PostgresTaking):
    """The insertions of `RunStore`."""

    def insert_run(self, scope: Scope, initial: InitialRun, *, connection: Any = None) -> Started:
        """As the contract says. With `connection`, a psycopg connection, the run joins its open transaction and exists
        once that commits; a refusal leaves the transaction as it was.
        """
        check_initial(initial)
        _check_connection(connection)
        parameters = of_initial(initial, owner_of(scope), self._database.now())
        if connection is None:
            return self._database.run(lambda session, again: self._insert(session, initial, parameters, again))
        return _within(connection, lambda cursor: self._insert(cursor, initial, parameters, again=False))

    def insert_runs(
        self, scope: Scope, initials: Sequence[InitialRun], *, connection: Any = None
    ) -> tuple[Started, ...]:
        """As the contract says; `connection` as for `insert_run`."""
        for initial in initials:
            check_initial(initial)
        _check_connection(connection)
        tenant = owner_of(scope)
        if not initials:
            return ()
        if connection is not None:
            return _within(connection, lambda cursor: self._insert_all(cursor, tenant, initials))

        def insert(session: Session, again: bool) -> tuple[Started, ...]:
            try:
                with session.transaction():
                    return self._insert_all(session, tenant, initials)
            except InvalidCommit:
                if not again:
                    raise
                # The lost attempt had committed all of them: ids are random, so the runs are ours.
                started = self._started_all(session, tenant, initials, {}, self._holders(session, tenant, initials))
                if started is None:
                    raise StoreUnavailable(_PRUNED) from None
                return started

        return self._database.run(insert)

    def _insert(
        self, session: SessionOrCursor, initial: InitialRun, parameters: dict[str, Any], again: bool
    ) -> Started:
        try:
            for _ in range(_KEY_ROUNDS):
                row = self._database.execute(session, "insert_run", parameters | _bound(session)).fetchone()
                if row is not None:
                    return _created(initial, row["now"])
                holder = self._database.execute(session, "holder_of_key", parameters).fetchone()
                started = None if holder is None else self._started_before(session, initial, parameters, holder)
                if started is not None:
                    return started
        except errors.ForeignKeyViolation as error:
            raise NotFound(missing_versions([initial])) from error
        except errors.UniqueViolation as error:
            if not again:
                raise InvalidCommit(f"run id {initial.run.id!r} is taken") from error
            # The lost attempt had committed: ids are random, so the run is ours.
            started = self._started_before(session, initial, parameters, parameters)
            if started is None:
                raise StoreUnavailable(_PRUNED) from error
            return started
        raise StoreUnavailable(f"the holder of start key {initial.start_key!r} kept changing")

    def _started_before(
        self, session: SessionOrCursor, initial: InitialRun, parameters: dict[str, Any], holder: dict[str, Any]
    ) -> Started | None:
        """The run that holds the key. None when it has been pruned since."""
        identity = ("graph_id", "graph_hash", "input_digest")
        if any(holder[name] != parameters[name] for name in identity):
            raise KeyConflict(initial.start_key or "", holder["id"])
        row = self._database.execute(session, "fetch_run", {**parameters, "id": holder["id"]}).fetchone()
        if row is None:
            return None
        return Started(run=run_of(row), created=row["id"] == initial.run.id, now=row["now"])

    def _insert_all(
        self, session: SessionOrCursor, tenant: str | None, initials: Sequence[InitialRun]
    ) -> tuple[Started, ...]:
        """Inserts what is not held by a key yet; whatever it raises has to undo what it inserted before."""
        firsts, inserted = list(_first_of_each_key(initials)), dict[str, datetime]()
        open_ = firsts
        for _ in range(_KEY_ROUNDS):
            parameters = of_initials(open_, tenant, self._database.now())
            try:
                rows = self._database.execute(
                    session, "insert_runs", parameters | _bound(session), prepare=False
                ).fetchall()
            except errors.ForeignKeyViolation as error:
                raise NotFound(missing_versions(initials)) from error
            except errors.UniqueViolation as error:
                raise InvalidCommit(f"the id of one of {len(initials)} runs is taken") from error
            inserted |= {row["id"]: row["now"] for row in rows}
            left = [initial for initial in firsts if initial.run.id not in inserted]
            if not left and len(firsts) == len(initials):
                return tuple(_created(initial, inserted[initial.run.id]) for initial in initials)
            holders = self._holders(session, tenant, initials)
            open_ = [initial for initial in left if initial.start_key not in holders]
            if not open_:
                started = self._started_all(session, tenant, initials, inserted, holders)
                if started is not None:
                    return started
                open_ = left
        raise StoreUnavailable(f"the holder of start key {open_[0].start_key!r} kept changing")

    def _holders(
        self, session: SessionOrCursor, tenant: str | None, initials: Sequence[InitialRun]
    ) -> dict[str, DictRow]:
        """The identity of the run that holds each of the keys which are held."""
        keys = array(initial.start_key for initial in initials if initial.start_key is not None)
        parameters = {"tenant": tenant or "", "start_keys": keys}
        rows = self._database.execute(session, "holders_of_keys", parameters, prepare=False).fetchall()
        return {row["start_key"]: row for row in rows}

    def _started_all(
        self,
        session: SessionOrCursor,
        tenant: str | None,
        initials: Sequence[InitialRun],
        inserted: dict[str, datetime],
        holders: dict[str, DictRow],
    ) -> tuple[Started, ...] | None:
        """What became of each run, those of this batch and those that were there before it. None when one of the latter
        has been pruned since.
        """
        ids: list[str] = []
        for initial in initials:
            held = holders.get(initial.start_key) if initial.start_key is not None else None
            if held is not None and _identity(held) != _identity_of(initial):
                raise KeyConflict(initial.start_key or "", held["id"])
            ids.append(initial.run.id if held is None else held["id"])
        absent = [run_id for run_id in ids if run_id not in inserted]
        parameters = {"ids": array(absent), "tenant": tenant or "", "now": self._database.now()}
        stored = {
            row["id"]: row
            for row in self._database.execute(session, "fetch_runs", parameters, prepare=False).fetchall()
        }
        given = {initial.run.id: initial for initial in initials}
        started: list[Started] = []
        for initial, run_id in zip(initials, ids, strict=True):
            own = run_id == initial.run.id
            if own and run_id in inserted:
                started.append(_created(initial, inserted[run_id]))
            elif run_id in inserted:  # The same key, earlier in this batch.
                started.append(replace(_created(given[run_id], inserted[run_id]), created=False))
            elif run_id in stored:
                row = stored[run_id]
                started.append(Started(run=run_of(row), created=own, now=row["now"]))
            else:
                return None
        return tuple(started)


def _bound(session: SessionOrCursor) -> dict[str, str | None]:
    """The parameter that bounds the wait for a key: in our own sessions, never in a caller's transaction."""
    return {"lock": _KEY_WAIT if isinstance(session, Session) else None}


def _check_connection(connection: Any) -> None:
    if connection is not None and not isinstance(connection, psycopg.Connection):
        raise InvalidInput(
            "connection must be a psycopg connection, one of SQLAlchemy or Django over psycopg, or a SQLAlchemy "
            f"session, got {type(connection).__module__}.{type(connection).__qualname__}"
        )


def _within(connection: psycopg.Connection[Any], work: Callable[[psycopg.Cursor[DictRow]], T]) -> T:
    """What `work` returns, done in a savepoint of the caller's transaction.

    The cursors are the driver's own raw ones: a framework's kind may bind or read values in another way.
    """
    if not connection.autocommit and connection.info.transaction_status is TransactionStatus.IDLE:
        # Without a transaction to join, the savepoint below would be a transaction of its own and commit.
        psycopg.RawCursor(connection, row_factory=dict_row).execute("SELECT")
    with connection.transaction(), adapt(psycopg.RawCursor(connection, row_factory=dict_row)) as cursor:
        return work(cursor)


def _first_of_each_key(initials: Sequence[InitialRun]) -> Sequence[InitialRun]:
    """Those without a key, and of each key the first."""
    seen: dict[str, InitialRun] = {}
    return [i for i in initials if i.start_key is None or seen.setdefault(i.start_key, i) is i]


def _identity(holder: DictRow) -> tuple[str, str, str]:
    return holder["graph_id"], holder["graph_hash"], holder["input_digest"]


def _identity_of(initial: InitialRun) -> tuple[str, str, str]:
    return initial.run.graph_id, initial.run.graph_hash, initial.input_digest or ""


def _created(initial: InitialRun, now: datetime) -> Started:
    return Started(run=stamped(initial.run, now), created=True, now=now)
