"""Starting a run with one's own data: psycopg, SQLAlchemy and Django, on a real server.

The run and the caller's row exist together or not at all; the dispatcher is nudged once the commit is durable.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import django
import psycopg
import pytest
import sqlalchemy
from django.conf import settings
from django.db import connection as django_connection
from django.db import connections, transaction
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from support.rig import Nudges

from docket_celery import START, Graph, GraphRef
from docket_celery.client import TenantClient
from docket_celery.config import Config
from docket_celery.engine import build
from docket_celery.errors import InvalidInput, KeyConflict, StoreUnavailable
from docket_celery.storage.postgres import open_storage, starts
from docket_celery.telemetry.hook import Fact, Hooks, MomentCommitted


def node() -> None:
    """A node that workers could find."""


GRAPH = Graph("order").input("n", int, default=0).node("a", node).edge(START, "a")


class ListeningNudges(Nudges):
    """Remembers as well what another session saw of the caller's rows at each nudge."""

    def __init__(self, seen: Callable[[], int]) -> None:
        super().__init__()
        self.seen_by_others: list[int] = []
        self._seen = seen

    def wake(self, *, after: float = 0.0) -> None:
        super().wake(after=after)
        self.seen_by_others.append(self._seen())


@dataclass(slots=True, kw_only=True)
class Place:
    """`docket` over a database in which the caller has a table, `mine`, of its own."""

    url: str
    docket: TenantClient
    nudges: ListeningNudges
    ref: GraphRef
    facts: list[Fact]

    def told(self) -> list[tuple[str, str]]:
        """The transitions that were told, as run ids and what they were for."""
        moments = [fact.moment for fact in self.facts if isinstance(fact, MomentCommitted)]
        return [(moment.run.id, moment.checkpoint_type.value) for moment in moments]

    def runs(self) -> int:
        return len(self.docket.list_runs(limit=1_000).runs)

    def rows(self) -> int:
        return count(self.url)


def count(url: str) -> int:
    with psycopg.connect(url) as other:
        (found,) = other.execute("SELECT count(*) FROM mine").fetchall()
    return int(found[0])


@pytest.fixture
def place(postgres_url: str) -> Iterator[Place]:
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE TABLE mine (n int)")
    nudges = ListeningNudges(lambda: count(postgres_url))
    storage = open_storage(postgres_url)
    facts: list[Fact] = []
    hooks = Hooks([facts.append])
    engine = build(Config(), storage, lambda name: node, pause=time.sleep, waker=nudges, hooks=hooks)
    docket = TenantClient(engine)
    yield Place(url=postgres_url, docket=docket, nudges=nudges, ref=docket.save_graph(GRAPH), facts=facts)
    storage.runs._database.sessions.close()


# -- psycopg ------------------------------------------------------------------------------------------------------


def test_a_start_within_a_psycopg_transaction_is_left_to_the_tick_or_an_explicit_wake(place: Place) -> None:
    with psycopg.connect(place.url) as mine:
        mine.execute("INSERT INTO mine VALUES (1)")
        place.docket.start_run(place.ref, {"n": 1}, connection=mine)
        assert (place.runs(), place.rows()) == (0, 0)
    assert (place.runs(), place.rows()) == (1, 1)
    assert place.nudges.after == []
    place.docket.wake()
    assert place.nudges.after == [0.0]


def test_an_autocommitting_psycopg_connection_has_committed_and_nudges_at_once(place: Place) -> None:
    with psycopg.connect(place.url, autocommit=True) as mine:
        place.docket.start_run(place.ref, connection=mine)
        assert place.runs() == 1
        assert place.nudges.after == [0.0]
        with mine.transaction():
            place.docket.start_run(place.ref, connection=mine)
            assert place.runs() == 1
    assert place.runs() == 2
    assert place.nudges.after == [0.0]


@pytest.mark.parametrize("rows", [psycopg.rows.scalar_row, psycopg.rows.class_row(GraphRef)])
@pytest.mark.parametrize("cursors", [psycopg.Cursor, psycopg.ClientCursor, psycopg.RawCursor])
def test_a_connection_may_read_rows_and_bind_values_in_its_own_way(place: Place, rows: Any, cursors: Any) -> None:
    with psycopg.connect(place.url, row_factory=rows, cursor_factory=cursors) as connection:
        run = place.docket.start_run(place.ref, connection=connection)
    assert place.docket.fetch_run(run.id) == run


def test_many_runs_join_a_transaction_like_one(place: Place) -> None:
    with psycopg.connect(place.url) as mine:
        place.docket.start_runs(place.ref, [{"n": n} for n in range(20)], connection=mine)
        assert place.runs() == 0
        mine.rollback()
        assert place.runs() == 0
        place.docket.start_runs(place.ref, [{"n": n} for n in range(20)], connection=mine)
    assert place.runs() == 20


def test_a_refused_batch_leaves_the_callers_transaction_usable(place: Place) -> None:
    place.docket.start_run(place.ref, {"n": 1}, key="k")
    with psycopg.connect(place.url) as mine:
        mine.execute("INSERT INTO mine VALUES (1)")
        with pytest.raises(KeyConflict):
            place.docket.start_runs(place.ref, [{"n": 1}, {"n": 2}], keys=[None, "k"], connection=mine)
    assert (place.runs(), place.rows()) == (1, 1)


@pytest.mark.parametrize("many", [False, True])
def test_a_key_in_a_transaction_that_stays_open_holds_up_nobody_but_its_rivals_and_those_not_for_long(
    place: Place, monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    monkeypatch.setattr(starts, "_KEY_WAIT", "100ms")

    def rival(_: int) -> str:
        if many:
            return place.docket.start_runs(place.ref, [{"n": 1}], keys=["k"])[0].id
        return place.docket.start_run(place.ref, {"n": 1}, key="k").id

    with psycopg.connect(place.url) as mine, ThreadPoolExecutor(8) as pool:
        run = place.docket.start_run(place.ref, {"n": 1}, key="k", connection=mine)
        assert mine.execute("SHOW lock_timeout").fetchone() == ("0",)
        rivals = [pool.submit(rival, number) for number in range(8)]
        while not all(future.done() for future in rivals):
            assert place.runs() == 0
        assert all(isinstance(future.exception(), StoreUnavailable) for future in rivals)
        mine.commit()
        assert rival(8) == run.id
    assert place.runs() == 1


# -- SQLAlchemy ---------------------------------------------------------------------------------------------------


@pytest.fixture
def sqlalchemy_engine(place: Place) -> Iterator[sqlalchemy.Engine]:
    engine = sqlalchemy.create_engine(place.url.replace("postgresql://", "postgresql+psycopg://"))
    yield engine
    engine.dispose()


INSERT = sqlalchemy.text("INSERT INTO mine VALUES (1)")


def test_a_session_that_commits_has_started_the_run_and_nudges_once_it_is_durable(
    place: Place, sqlalchemy_engine: sqlalchemy.Engine
) -> None:
    with Session(sqlalchemy_engine) as session:
        session.execute(INSERT)
        runs = [place.docket.start_run(place.ref, {"n": n}, connection=session) for n in (1, 2)]
        assert (place.runs(), place.rows(), place.nudges.after) == (0, 0, [])
        session.commit()
        assert (place.runs(), place.rows()) == (2, 1)
        assert place.nudges.seen_by_others == [1, 1]
        session.execute(INSERT)
        session.commit()
    assert len(place.nudges.after) == 2
    assert [place.docket.fetch_run(run.id) for run in runs] == runs


def test_a_session_that_has_done_nothing_yet_is_joined_all_the_same(
    place: Place, sqlalchemy_engine: sqlalchemy.Engine
) -> None:
    with Session(sqlalchemy_engine) as session, session.begin():
        place.docket.start_run(place.ref, connection=session)
        assert place.runs() == 0
    assert place.runs() == 1
    assert len(place.nudges.after) == 1


def test_a_session_that_rolls_back_leaves_nothing_and_nudges_nobody(
    place: Place, sqlalchemy_engine: sqlalchemy.Engine
) -> None:
    with Session(sqlalchemy_engine) as session:
        session.execute(INSERT)
        place.docket.start_run(place.ref, connection=session)
        session.rollback()
        session.execute(INSERT)
        session.commit()
    assert (place.runs(), place.rows(), place.nudges.after) == (0, 1, [])


def test_a_savepoint_neither_nudges_early_nor_takes_the_nudge_along(
    place: Place, sqlalchemy_engine: sqlalchemy.Engine
) -> None:
    with Session(sqlalchemy_engine) as session:
        with session.begin_nested():
            run = place.docket.start_run(place.ref, {"n": 1}, connection=session)
        assert place.nudges.after == []
        with session.begin_nested() as savepoint:
            session.execute(INSERT)
            savepoint.rollback()
        session.commit()
    assert (place.runs(), place.rows(), len(place.nudges.after)) == (1, 0, 1)
    assert place.told() == [(run.id, "run_initialized")]


def test_starts_are_told_once_they_are_durable_and_with_the_run_as_it_is_stored(
    place: Place, sqlalchemy_engine: sqlalchemy.Engine
) -> None:
    with Session(sqlalchemy_engine) as session:
        one = place.docket.start_run(place.ref, {"n": 1}, connection=session)
        later = place.docket.start_run(place.ref, start_at=datetime(2999, 1, 1, tzinfo=UTC), connection=session)
        many = place.docket.start_runs(place.ref, [{"n": 2}, {"n": 3}], connection=session)
        assert place.told() == []
        session.commit()
    assert [run_id for run_id, _ in place.told()] == [run.id for run in (one, later, *many)]
    told = [fact.moment.run for fact in place.facts if isinstance(fact, MomentCommitted)]
    assert told == [place.docket.fetch_run(run.id) for run in (one, later, *many)]
    assert len(place.nudges.after) == 2


def test_what_a_savepoint_took_back_or_a_closed_session_left_is_not_told(
    place: Place, sqlalchemy_engine: sqlalchemy.Engine
) -> None:
    session = Session(sqlalchemy_engine)
    with session.begin_nested() as outer:
        with session.begin_nested():
            place.docket.start_run(place.ref, {"n": 1}, connection=session)
        outer.rollback()
    kept = place.docket.start_run(place.ref, {"n": 2}, connection=session)
    session.commit()
    place.docket.start_run(place.ref, {"n": 3}, connection=session)
    session.close()
    session.execute(INSERT)
    session.commit()
    session.close()
    assert place.runs() == 1
    assert place.told() == [(kept.id, "run_initialized")]
    assert len(place.nudges.after) == 1


def test_a_commit_that_a_failed_statement_has_turned_into_a_rollback_is_not_told(
    place: Place, sqlalchemy_engine: sqlalchemy.Engine
) -> None:
    with Session(sqlalchemy_engine) as session:
        place.docket.start_run(place.ref, connection=session)
        with pytest.raises(sqlalchemy.exc.ProgrammingError):
            session.execute(sqlalchemy.text("SELECT FROM nowhere"))
        session.commit()
        assert (place.runs(), place.told(), place.nudges.after) == (0, [], [])
        kept = place.docket.start_run(place.ref, connection=session)
        with pytest.raises(sqlalchemy.exc.ProgrammingError), session.begin_nested():
            session.execute(sqlalchemy.text("SELECT FROM nowhere"))
        session.commit()
    assert (place.runs(), place.told()) == (1, [(kept.id, "run_initialized")])


@pytest.mark.parametrize("mode", ["conditional_savepoint", "create_savepoint", "rollback_only"])
@pytest.mark.parametrize("inside_savepoint", [False, True])
def test_a_session_that_joined_a_transaction_of_its_connection_tells_nothing_when_it_says_it_commits(
    place: Place, sqlalchemy_engine: sqlalchemy.Engine, mode: Any, inside_savepoint: bool
) -> None:
    with sqlalchemy_engine.connect() as connection, connection.begin() as transaction:
        if inside_savepoint:
            connection.begin_nested()
        with Session(connection, join_transaction_mode=mode) as session:
            place.docket.start_run(place.ref, connection=session)
            session.commit()
        transaction.rollback()
    assert (place.runs(), place.told(), place.nudges.after) == (0, [], [])


def test_a_start_joined_to_a_bare_psycopg_transaction_is_not_told(place: Place) -> None:
    with psycopg.connect(place.url) as mine:
        place.docket.start_run(place.ref, connection=mine)
    assert (place.runs(), place.told()) == (1, [])


def test_a_scoped_session_is_the_session_of_its_thread(place: Place, sqlalchemy_engine: sqlalchemy.Engine) -> None:
    sessions = scoped_session(sessionmaker(sqlalchemy_engine))
    place.docket.start_run(place.ref, connection=sessions)
    assert place.runs() == 0
    sessions.commit()
    sessions.remove()
    assert (place.runs(), len(place.nudges.after)) == (1, 1)


def test_a_bare_connection_commits_the_run_also_as_its_first_work(
    place: Place, sqlalchemy_engine: sqlalchemy.Engine
) -> None:
    with sqlalchemy_engine.connect() as connection:
        place.docket.start_run(place.ref, connection=connection)
        assert place.runs() == 0
        connection.commit()
        assert place.runs() == 1
        place.docket.start_run(place.ref, connection=connection)
        connection.rollback()
    assert place.runs() == 1
    assert place.nudges.after == []


def test_the_block_form_of_a_connection_is_one_transaction(place: Place, sqlalchemy_engine: sqlalchemy.Engine) -> None:
    with sqlalchemy_engine.begin() as connection:
        connection.execute(INSERT)
        place.docket.start_runs(place.ref, [{"n": 1}, {"n": 2}], connection=connection)
    assert (place.runs(), place.rows()) == (2, 1)


# -- Django -------------------------------------------------------------------------------------------------------


@pytest.fixture
def django_database(place: Place) -> Iterator[Any]:
    parts = conninfo_to_dict(place.url)
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts["dbname"],
        "USER": parts.get("user", ""),
        "HOST": parts.get("host", ""),
        "PORT": parts.get("port", ""),
    }
    if not settings.configured:
        settings.configure(DATABASES={"default": database}, USE_TZ=True)
        django.setup()
    django_connection.settings_dict.update(database)
    yield django_connection
    connections.close_all()


def insert_by_django() -> None:
    with django_connection.cursor() as cursor:
        cursor.execute("INSERT INTO mine VALUES (%s)", [1])


def test_an_atomic_block_that_ends_has_started_the_run_and_nudges_after_its_commit(
    place: Place, django_database: Any
) -> None:
    with transaction.atomic():
        insert_by_django()
        run = place.docket.start_run(place.ref, {"n": 1}, connection=django_database)
        assert (place.runs(), place.rows(), place.nudges.after) == (0, 0, [])
    assert (place.runs(), place.rows()) == (1, 1)
    assert place.nudges.seen_by_others == [1]
    assert place.docket.fetch_run(run.id) == run
    assert place.told() == [(run.id, "run_initialized")]


def test_an_atomic_block_that_fails_leaves_nothing_and_nudges_nobody(place: Place, django_database: Any) -> None:
    def checkout() -> None:
        with transaction.atomic():
            insert_by_django()
            place.docket.start_run(place.ref, connection=django_database)
            raise RuntimeError("the card was declined")

    with pytest.raises(RuntimeError):
        checkout()
    insert_by_django()
    assert (place.runs(), place.rows(), place.nudges.after) == (0, 1, [])


def test_an_inner_block_that_fails_takes_its_own_run_and_nudge_only(place: Place, django_database: Any) -> None:
    def inner() -> None:
        with transaction.atomic():
            place.docket.start_run(place.ref, {"n": 2}, connection=django_database)
            raise RuntimeError("the card was declined")

    with transaction.atomic():
        place.docket.start_run(place.ref, {"n": 1}, connection=django_database)
        with pytest.raises(RuntimeError):
            inner()
    assert (place.runs(), len(place.nudges.after), len(place.told())) == (1, 1, 1)


def test_a_refused_start_leaves_the_atomic_block_usable(place: Place, django_database: Any) -> None:
    place.docket.start_run(place.ref, {"n": 1}, key="k")
    with transaction.atomic():
        with pytest.raises(KeyConflict):
            place.docket.start_run(place.ref, {"n": 2}, key="k", connection=django_database)
        insert_by_django()
    assert (place.runs(), place.rows()) == (1, 1)


def test_outside_of_an_atomic_block_the_run_is_durable_and_nudged_at_once(place: Place, django_database: Any) -> None:
    place.docket.start_runs(place.ref, [{"n": 1}, {"n": 2}], connection=connections["default"])
    assert (place.runs(), len(place.nudges.after)) == (2, 1)


def test_a_key_found_again_nudges_nobody(place: Place, django_database: Any) -> None:
    first = place.docket.start_run(place.ref, {"n": 1}, key="k")
    place.nudges.after.clear()
    with transaction.atomic():
        again = place.docket.start_run(place.ref, {"n": 1}, key="k", connection=django_database)
    assert (again, place.nudges.after) == (first, [])


# -- other drivers ------------------------------------------------------------------------------------------------


def refusal(place: Place, connection: Any) -> str:
    with pytest.raises(InvalidInput) as caught:
        place.docket.start_run(place.ref, connection=connection)
    assert place.runs() == 0
    return str(caught.value)


def test_another_driver_is_refused_by_name_however_it_is_wrapped(place: Place) -> None:
    bare = sqlite3.connect(":memory:")
    assert "sqlite3.Connection" in refusal(place, bare)
    bare.close()
    engine = sqlalchemy.create_engine("sqlite://")
    with engine.connect() as connection, Session(engine) as session:
        assert "sqlite3.Connection" in refusal(place, connection)
        assert "sqlite3.Connection" in refusal(place, session)
    engine.dispose()


def test_an_asynchronous_session_or_connection_is_refused(place: Place) -> None:
    async def ask() -> list[str]:
        engine = create_async_engine(place.url.replace("postgresql://", "postgresql+psycopg://"))
        async with engine.connect() as connection, AsyncSession(engine) as session:
            inside = await session.run_sync(lambda inner: refusal(place, inner))
            told = [refusal(place, connection), refusal(place, session), inside]
        await engine.dispose()
        return told

    assert all("Async" in message for message in asyncio.run(ask()))
