"""Running operations on one database, and what is done when one of them fails.

Every operation is repeated once when its connection turns out to be broken: the store's statements are safe to repeat.
Nothing of correctness lives in a session, so that a transaction pooler may stand between.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from functools import cached_property
from typing import Any, Final, TypeAlias, TypeVar

import psycopg
from psycopg import errors
from psycopg.rows import DictRow

from docket_celery.errors import RowRefused, SchemaMismatch, StoreError, StoreUnavailable
from docket_celery.holds import held
from docket_celery.storage.postgres.queries import Queries
from docket_celery.storage.postgres.server_errors import (
    LOST_PLAN,
    LOST_RACE,
    MISSING,
    OF_NO_USE,
    SOONER_IN_COMPANY,
    is_full_of_notifications,
    refuses_a_value,
)
from docket_celery.storage.postgres.sessions import Session, Sessions

T = TypeVar("T")

logger = logging.getLogger("docket_celery")

_REPEATS: Final = 3
"""How often a statement that lost against another transaction is tried again."""

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
        self.queries = Queries(schema, notify=notify)
        self.schema = schema
        self.sessions = Sessions(url, name=schema, max_connections=max_connections)
        self._now = now
        self._prepare = True
        self._has_said_untold = False

    @cached_property
    def _untelling(self) -> Queries:
        """The same statements, which tell nobody."""
        return Queries(self.schema)

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
        tells = not isinstance(session, Session) or session.tells
        statement = (self.queries if tells else self._untelling).numbered(name)
        values = [str(value) if type(value) is int else value for value in map(parameters.__getitem__, statement.names)]
        if isinstance(session, Session):
            return session.statements.execute(statement.text, values, prepare=prepare and self._prepare)
        return session.execute(statement.text, values, prepare=False, binary=True)

    def run(self, work: Work[T]) -> T:
        """What `work` returns. Raises `StoreUnavailable` or `SchemaMismatch` for failures of the database itself.

        The session commits each statement by itself unless `work` opens a transaction.
        """
        again = fresh = untold = False
        lost_races = 0
        while True:
            with held():
                session = self.sessions.take(fresh=fresh)
                session.tells = not untold
                try:
                    return work(session, again)
                except LOST_PLAN as error:
                    if fresh:
                        raise self._translated(error) from error
                    fresh = True
                    self._forget_plans(session, error)
                except LOST_RACE as error:
                    lost_races += 1
                    if lost_races > _REPEATS:
                        raise self._translated(error) from error
                except errors.ProgramLimitExceeded as error:
                    # Where it tells nobody by now, a trigger of the host's does.
                    if untold or not is_full_of_notifications(error):
                        raise self._translated(error) from error
                    untold = True
                    self._say_untold(error)
                except (psycopg.OperationalError, *OF_NO_USE) as error:
                    if fresh or not (session.broken or isinstance(error, OF_NO_USE)):
                        raise self._translated(error) from error
                    session.close()
                    again = fresh = True
                except psycopg.Error as error:
                    raise self._translated(error) from error
                finally:
                    self.sessions.give_back(session)

    def read(self, name: str, parameters: dict[str, Any], *, prepare: bool = True) -> list[DictRow]:
        """All rows of one statement."""
        return self.run(lambda session, _: self.execute(session, name, parameters, prepare=prepare).fetchall())

    def read_together(self, name: str, parameters: dict[str, Any]) -> list[DictRow]:
        """All rows of one statement that does what several callers have asked for. An empty list where the server ended
        it, as befalls long statements sooner: each caller may still succeed alone.
        """
        try:
            return self.read(name, parameters)
        except StoreUnavailable as error:
            if isinstance(error.__cause__, SOONER_IN_COMPANY):
                return []
            raise

    def first(self, name: str, parameters: dict[str, Any]) -> DictRow | None:
        """The first row of one statement, if there is any."""
        return self.run(lambda session, _: self.execute(session, name, parameters).fetchone())

    def write(self, name: str, parameters: dict[str, Any]) -> int:
        """How many rows one statement has changed."""
        return self.run(lambda session, _: self.execute(session, name, parameters).rowcount)

    def _say_untold(self, error: psycopg.Error) -> None:
        if not self._has_said_untold:
            self._has_said_untold = True
            logger.warning("wakes by others wait for the tick: %s", self.sessions.unavailable(_first_line(error)))

    def _forget_plans(self, session: Session, error: psycopg.Error) -> None:
        """After a migration the plans of a session are stale: a new one has none. Behind a transaction pooler, where
        the next transaction may meet any server session, statements are not prepared any more.
        """
        session.close()
        if not isinstance(error, errors.FeatureNotSupported):
            self._prepare = False

    def _translated(self, error: psycopg.Error) -> StoreError:
        place, said = self.sessions.place, _first_line(error)
        if isinstance(error, MISSING):
            return SchemaMismatch(
                f"schema {self.schema!r} of {place} is missing or too old ({said}); run `celery -A proj docket migrate`"
            )
        if refuses_a_value(error):
            return RowRefused(f"PostgreSQL at {place} cannot hold a value ({error.sqlstate}): {said}")
        if isinstance(error, psycopg.IntegrityError):
            return StoreError(f"PostgreSQL at {place} refuses a row ({error.sqlstate}): {said}")
        return self.sessions.unavailable(f"{error.sqlstate or 'connection lost'}: {error}")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
