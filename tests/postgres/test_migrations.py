"""Migrations: up, down, twice, at once, half done, and against schemas of another release."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from support.clock import eventually

from docket_celery.embedded.postgres import EmbeddedPostgres
from docket_celery.errors import ConfigError, SchemaMismatch, StoreUnavailable
from docket_celery.storage.contracts.values import TENANTLESS
from docket_celery.storage.postgres import migrate, open_storage

ODD = 'We"ird Schema-1; é'


def _tables(url: str, schema: str = "docket") -> set[str]:
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", (schema,)).fetchall()
    return {name for (name,) in rows}


def test_upgrading_an_empty_database_makes_every_table_and_the_check_passes(empty_postgres_url: str) -> None:
    migrate.upgrade(empty_postgres_url)
    migrate.check(empty_postgres_url)
    assert _tables(empty_postgres_url) == {
        "alembic_version", "dispatch", "graph_versions", "run_chunks", "run_events", "run_fields", "run_inbox", "runs",
        "tenant_turns",
        "worker_slots",
    }  # fmt: skip


def test_upgrading_twice_changes_nothing(empty_postgres_url: str) -> None:
    migrate.upgrade(empty_postgres_url)
    before = _tables(empty_postgres_url)
    migrate.upgrade(empty_postgres_url)
    assert _tables(empty_postgres_url) == before


def test_downgrading_drops_our_tables_and_upgrading_brings_them_back(empty_postgres_url: str) -> None:
    migrate.upgrade(empty_postgres_url)
    migrate.downgrade(empty_postgres_url)
    assert _tables(empty_postgres_url) == {"alembic_version"}
    migrate.upgrade(empty_postgres_url)
    migrate.check(empty_postgres_url)


def test_eight_migrations_of_an_empty_database_at_once_all_succeed(empty_postgres_url: str) -> None:
    for round in range(3):
        schema = f"round {round}"
        start = threading.Barrier(8)

        def one(_: int, start: threading.Barrier = start, schema: str = schema) -> None:
            start.wait()
            migrate.upgrade(empty_postgres_url, schema)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(one, range(8)))
        with psycopg.connect(empty_postgres_url) as connection:
            versions = f'SELECT version_num FROM "{schema}".alembic_version'
            assert connection.execute(versions.encode()).fetchall() == [("0001",)]


def test_two_schemas_in_one_database_do_not_meet_and_odd_names_are_quoted(empty_postgres_url: str) -> None:
    migrate.upgrade(empty_postgres_url, ODD)
    assert "runs" in _tables(empty_postgres_url, ODD)
    assert _tables(empty_postgres_url) == set()
    storage = open_storage(empty_postgres_url, schema=ODD)
    assert storage.graphs.list_graphs(TENANTLESS) == ()


@pytest.mark.parametrize("schema", ["", "a%b", "a:b", "a{b}", "a\\b", "a\x00b", "é" * 32])
def test_a_schema_name_that_cannot_stand_everywhere_is_refused(schema: str) -> None:
    with pytest.raises(ConfigError, match="docket_schema"):
        open_storage("postgresql://localhost/x", schema=schema)


@pytest.mark.parametrize("schema", ["docket", ODD])
def test_the_printed_script_makes_the_same_schema_when_psql_runs_it(
    postgres_server: EmbeddedPostgres, schema: str
) -> None:
    migrated, scripted = (postgres_server.create_database(f"{name} {schema}") for name in ("migrated", "scripted"))
    migrate.upgrade(migrated, schema)
    postgres_server.tool("psql", "--quiet", "--set=ON_ERROR_STOP=1", scripted, stdin=migrate.sql(schema))
    migrate.check(scripted, schema)
    # Newer versions of the tool begin and end with a key that is random.
    dumps = [
        [line for line in postgres_server.tool("pg_dump", "--schema-only", url).splitlines() if "restrict" not in line]
        for url in (migrated, scripted)
    ]
    assert dumps[0] == dumps[1]
    assert len(dumps[0]) > 100


def test_checking_the_schema_loads_no_migration_tool(postgres_url: str) -> None:
    script = (
        "import sys\nfrom docket_celery.storage.postgres.migrate import check\n"
        "check(sys.argv[1])\nassert not {'alembic', 'sqlalchemy'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", script, postgres_url], check=True)


def test_a_database_without_the_schema_names_the_command(empty_postgres_url: str) -> None:
    with pytest.raises(SchemaMismatch, match=r"needs version 0001: run `celery -A proj docket migrate`"):
        migrate.check(empty_postgres_url)
    with pytest.raises(SchemaMismatch, match="docket migrate"):
        open_storage(empty_postgres_url).graphs.list_graphs(TENANTLESS)


def test_a_newer_schema_is_refused_with_both_versions(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("UPDATE docket.alembic_version SET version_num = '0999'")
    with pytest.raises(SchemaMismatch, match="has version 0999; this release needs version 0001: install a newer"):
        migrate.check(postgres_url)
    with pytest.raises(SchemaMismatch, match="install a newer release"):
        migrate.upgrade(postgres_url)


def test_a_migration_that_fails_in_the_middle_leaves_nothing_behind(empty_postgres_url: str) -> None:
    with psycopg.connect(empty_postgres_url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA docket")
        connection.execute("CREATE TABLE docket.run_inbox (in_the_way int)")
        with pytest.raises(StoreUnavailable, match="run_inbox"):
            migrate.upgrade(empty_postgres_url)
        assert _tables(empty_postgres_url) == {"run_inbox"}
        connection.execute("DROP TABLE docket.run_inbox")
    migrate.upgrade(empty_postgres_url)
    migrate.check(empty_postgres_url)


def test_a_migration_waits_for_a_session_that_has_read_a_table_and_then_succeeds(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as reader, ThreadPoolExecutor(1) as pool:
        reader.execute("SELECT FROM docket.runs")
        downgrade = pool.submit(migrate.downgrade, postgres_url)
        with psycopg.connect(postgres_url, autocommit=True) as watch:
            eventually(lambda: watch.execute("SELECT FROM pg_locks WHERE NOT granted").fetchall())
            assert not downgrade.done()
        reader.rollback()
        downgrade.result(timeout=30)
    assert _tables(postgres_url) == {"alembic_version"}
