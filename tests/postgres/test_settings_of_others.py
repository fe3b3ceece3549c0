"""What a database or role may be set to, for other programs: the store works under it as under the defaults."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

import psycopg
import pytest
from psycopg import sql
from support.builders import a_run, an_initial, new_commit_id
from support.scene import Scene

from docket_celery.embedded.postgres import EmbeddedPostgres
from docket_celery.errors import StoreUnavailable
from docket_celery.run.document import Run, RunStatus
from docket_celery.storage.contracts.retention import PrunePolicy
from docket_celery.storage.contracts.values import SYSTEM, MutationDecision, NoChange, Scope
from docket_celery.storage.postgres import migrate, open_storage
from docket_celery.testing import ManualClock


def _set(connection: psycopg.Connection, setting: str) -> None:
    """For every session of this database that begins from now on."""
    name = sql.Identifier(connection.info.dbname)
    connection.execute(sql.SQL("ALTER DATABASE {} SET {}").format(name, sql.SQL(setting)))


def _reset(connection: psycopg.Connection) -> None:
    connection.execute(sql.SQL("ALTER DATABASE {} RESET ALL").format(sql.Identifier(connection.info.dbname)))


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_mutations_that_meet_wait_for_each_other_whatever_isolation_is_the_default(
    place: Scene, beside: psycopg.Connection, level: str
) -> None:
    _set(beside, f"default_transaction_isolation = '{level}'")
    place.start()
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda n: place.mutate("run-1", fields={"total": n}), range(60)))
    assert place.run().checkpoint_seq == 61


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_statements_and_transactions_have_the_level_that_they_are_written_for(
    place: Scene, beside: psycopg.Connection, level: str
) -> None:
    _set(beside, f"default_transaction_isolation = '{level}'")
    place.start()
    database = place.runs._database
    asking = b"SHOW transaction_isolation"
    (alone,) = database.run(lambda session, _: session.execute(asking).fetchall())
    with database.sessions.dedicated() as session, session.transaction():
        (together,) = session.execute(asking).fetchall()
    assert alone == together == {"transaction_isolation": "read committed"}


def test_a_node_that_an_event_does_not_have_is_no_word(place: Scene, beside: psycopg.Connection) -> None:
    _set(beside, "array_nulls = off")
    place.start()
    assert [event.node for event in place.storage.events.list_events(SYSTEM, "run-1").events] == [None]
    place.runs.insert_runs(Scope.of(None), [an_initial(a_run("run-2")), an_initial(a_run("run-3"))])
    assert (place.info("run-2").start_key, place.info("run-3").wake_at) == (None, place.now)


@pytest.mark.parametrize(("began", "ended"), [("2026-03-07", "2026-03-09"), ("2026-10-31", "2026-11-02")])
def test_a_day_has_24_hours_also_where_the_clocks_of_the_default_time_zone_were_changed_in_it(
    place: Scene, beside: psycopg.Connection, began: str, ended: str
) -> None:
    _set(beside, "TimeZone = 'America/New_York'")
    days = datetime.fromisoformat(ended) - datetime.fromisoformat(began)
    place.clock.advance(datetime.fromisoformat(f"{began}T12:00Z") - place.now)
    place.start("ended")
    place.mutate("ended", status=RunStatus.DONE)
    place.start("late")
    place.runs.release_claim("late", place.hold(), delay=days)
    assert place.info("late").wake_at == place.now + days
    place.clock.advance(days)
    policy = PrunePolicy(runs=days, events=None)
    assert place.storage.retention.prune(SYSTEM, policy).runs == 0
    place.clock.advance(timedelta(microseconds=1))
    assert place.storage.retention.prune(SYSTEM, policy).runs == 1


def test_after_a_failover_no_session_is_kept_that_can_only_read(place: Scene, beside: psycopg.Connection) -> None:
    _set(beside, "default_transaction_read_only = on")
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="25006"):
            place.start()
    _reset(beside)
    place.start()
    token = place.hold()
    assert place.runs.refresh_claims([("run-1", token)]) == {"run-1"}


def test_a_mutation_over_a_session_that_can_only_read_is_made_over_another(
    place: Scene, beside: psycopg.Connection
) -> None:
    place.start()
    place.runs._database.sessions.close()
    _set(beside, "default_transaction_read_only = on")
    assert place.run().id == "run-1"
    _reset(beside)
    calls: list[str] = []

    def decide(run: Run, now: object) -> MutationDecision:
        calls.append(run.id)
        # Only what can also write is asked: what a former primary says may be of yesterday.
        assert not beside.execute("SELECT FROM runs FOR UPDATE SKIP LOCKED").fetchall()
        return NoChange()

    place.runs.mutate_run(SYSTEM, "run-1", decide, commit_id=new_commit_id())
    assert calls == ["run-1"]


@pytest.fixture(params=["SQL_ASCII", "LATIN1"])
def narrow_url(request: pytest.FixtureRequest, postgres_server: EmbeddedPostgres) -> Iterator[str]:
    """A migrated database whose encoding is not UTF-8."""
    name = f"narrow_{request.param.lower()}"
    with psycopg.connect(postgres_server.url("postgres"), autocommit=True) as connection:
        make = "CREATE DATABASE {} ENCODING {} LOCALE 'C' TEMPLATE template0"
        connection.execute(sql.SQL(make).format(sql.Identifier(name), sql.Literal(request.param)))
        url = postgres_server.url(name)
        migrate.upgrade(url)
        migrate.check(url)
        yield url
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def test_a_database_in_another_encoding_keeps_values_and_names(narrow_url: str) -> None:
    place = Scene(open_storage(narrow_url), ManualClock())
    place.start(fields={"total": "\u2603 \U0001f600 \xe9"}, tenant="caf\xe9", start_key="k\xe9", input_digest="d")
    run = place.runs.fetch_run(Scope.of("caf\xe9"), "run-1")
    assert run.fields == {"total": "\u2603 \U0001f600 \xe9"}
    assert (place.info().tenant, place.info().start_key) == ("caf\xe9", "k\xe9")


def test_names_are_sent_whatever_encoding_the_environment_or_the_role_has(
    postgres_url: str, beside: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    _set(beside, "client_encoding = 'LATIN1'")
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    place = Scene(open_storage(postgres_url), ManualClock())
    place.start(tenant="\u2603", start_key="\u2603", input_digest="d")
    assert (place.info().tenant, place.info().start_key) == ("\u2603", "\u2603")
