"""Calls of one PostgreSQL store that meet: they wait for each other, and then go together in their order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from support.clock import eventually

from docket_celery.errors import StoreUnavailable
from docket_celery.storage.contracts.run_store import RunStore

LONG = 60.0
"""Seconds of patience that no test uses up."""


def share_always(runs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on each commit goes in the statement that several share, even by itself."""

    def carry_out(request: Any) -> Any:
        try:
            (done,) = runs._commit_together([request])
        except StoreUnavailable:
            raise
        except Exception:
            done = None
        return runs._commit(request) if done is None else done

    monkeypatch.setattr(runs, "_group", carry_out)


def noted(runs: Any) -> list[str]:
    """The names of all statements that are executed from now on, in order."""
    statements: list[str] = []
    execute = runs._database.execute

    def noting(session: Any, name: str, parameters: dict[str, Any], **options: Any) -> Any:
        statements.append(name)
        return execute(session, name, parameters, **options)

    runs._database.execute = noting
    return statements


TIME_LIMITS = [pytest.param("57014", 1, id="statement_timeout"), pytest.param("25P04", 2, id="transaction_timeout")]
"""The codes of the server's time limits, and how often a statement is tried: the second ends the session as well."""


def end_statements_of_many(connection: psycopg.Connection, code: str) -> None:
    """From now on the server ends a statement that changes several runs, as a time limit of the user's own may do."""
    connection.execute(
        "CREATE FUNCTION only_one() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"IF (SELECT count(*) FROM changed) > 1 THEN RAISE SQLSTATE '{code}'; END IF; RETURN NULL; END $$"
    )
    connection.execute(
        "CREATE TRIGGER only_one AFTER UPDATE ON runs REFERENCING NEW TABLE AS changed "
        "FOR EACH STATEMENT EXECUTE FUNCTION only_one()"
    )


class Meetings:
    """Lets calls of `commit` on `runs` meet, or those that another `group` of the store sees to. `statements` are the
    names of all that were executed, in order.
    """

    def __init__(self, runs: RunStore, group: str = "_group") -> None:
        self._group = getattr(runs, group)
        self._group._patience = LONG
        self._alone = self._group._alone
        self._group._alone = self._alone_or_held
        self._gates: dict[threading.Event, threading.Event] = {}
        self.statements = noted(runs)

    def _alone_or_held(self, request: Any) -> Any:
        if request not in self._gates:
            return self._alone(request)
        self._gates[request].set()
        assert request.wait(LONG)
        return "held"

    @contextmanager
    def gathering(self, pool: ThreadPoolExecutor) -> Iterator[None]:
        """Whoever calls inside waits, and goes together with the others at the end."""
        gate, begun = threading.Event(), threading.Event()
        self._gates[gate] = begun
        leader = pool.submit(self._group, gate)
        assert begun.wait(LONG)
        try:
            yield
        finally:
            gate.set()
            leader.result(LONG)

    @property
    def waiting(self) -> int:
        return len(self._group._queue().waiting)

    def begin(self, calls: Sequence[Callable[[], Any]], pool: ThreadPoolExecutor) -> list[Future[Any]]:
        """Begins the calls while somebody leads, each when the one before it waits or was refused at once."""
        futures = []
        for call in calls:
            before = self.waiting
            future = pool.submit(call)
            futures.append(future)
            eventually(lambda before=before, future=future: self.waiting > before or future.done())  # type: ignore[misc]
        return futures

    def __call__(self, *calls: Callable[[], Any]) -> list[Any]:
        """What each call returns or raises."""
        with ThreadPoolExecutor(len(calls) + 1) as pool:
            with self.gathering(pool):
                futures = self.begin(calls, pool)
            return [future.exception(LONG) or future.result() for future in futures]
