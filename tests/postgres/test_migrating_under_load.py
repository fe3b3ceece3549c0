"""A later migration meets a working fleet, an idle transaction, a kill. The revision here is made for the tests."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from support.builders import a_scan
from support.clock import eventually, own_time
from support.scene import Scene

from docket_celery.clock import SystemClock
from docket_celery.errors import SchemaMismatch, StoreUnavailable
from docket_celery.run.document import RunStatus
from docket_celery.storage.contracts.claims import Lease
from docket_celery.storage.postgres import migrate, open_storage

REVISION = """
from alembic import context, op

revision, down_revision = "0002", "0001"


def upgrade():
    schema = context.config.attributes["quoted_schema"]
    op.execute(f"ALTER TABLE {{schema}}.runs ADD COLUMN note text")
    op.execute(f"ALTER TABLE {{schema}}.runs ALTER COLUMN claim_attempts TYPE bigint")
    op.execute("{pause}")
    op.execute(f"CREATE INDEX runs_note ON {{schema}}.runs (note)")


def downgrade():
    pass
"""


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A release with one more revision; returns the revision's file."""
    scripts = tmp_path / "migrations"
    shutil.copytree(migrate._scripts(), scripts)
    revision = scripts / "versions" / "0002_note.py"
    revision.write_text(REVISION.format(pause="SELECT"))
    monkeypatch.setattr(migrate, "_scripts", lambda: scripts)
    return revision


def test_an_older_schema_is_refused_with_both_versions_and_the_command(postgres_url: str, later: Path) -> None:
    with pytest.raises(SchemaMismatch, match="has version 0001; this release needs version 0002: run `celery -A proj"):
        migrate.check(postgres_url)


def test_a_fleet_goes_on_while_a_migration_waits_for_an_idle_transaction(
    postgres_url: str, beside: psycopg.Connection, later: Path
) -> None:
    storage = open_storage(postgres_url, max_connections=6)
    place = Scene(storage, SystemClock())
    place.publish()
    done, slowest, numbers, guard = threading.Event(), [0.0], iter(range(1_000_000)), threading.Lock()

    def finish(lease: Lease) -> None:
        token = place.redeem(lease, token=f"mine-{lease.run_id}")
        place.commit(lease.run_id, token, status=RunStatus.DONE)

    def work() -> int:
        count = 0
        while not done.is_set():
            with guard:
                number = next(numbers)
            place.start(f"run-{number}")
            began = clock()
            leases = storage.runs.claim_due(a_scan(limit=2)).leases
            slowest[0] = max(slowest[0], clock() - began)
            for lease in leases:
                finish(lease)
                count += 1
        return count

    with own_time() as clock, ThreadPoolExecutor(5) as pool, psycopg.connect(postgres_url) as idle:
        workers = [pool.submit(work) for _ in range(4)]
        idle.execute("SELECT FROM docket.runs LIMIT 1")
        migration = pool.submit(migrate.upgrade, postgres_url)
        failed = "SELECT FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'"
        eventually(lambda: beside.execute(failed.encode()).fetchall())
        eventually(lambda: not beside.execute(failed.encode()).fetchall())
        assert not migration.done()
        idle.rollback()
        migration.result(timeout=60)
        began = next(numbers)
        eventually(lambda: next(numbers) > began + 20)
        done.set()
        finished = sum(worker.result(timeout=60) for worker in workers)
    for lease in storage.runs.claim_due(a_scan(limit=100)).leases:
        finish(lease)
        finished += 1
    migrate.check(postgres_url)
    assert slowest[0] < 2.0
    assert beside.execute("SELECT count(*) AS n FROM runs WHERE status = 'done'").fetchone() == {"n": finished}
    assert beside.execute("SELECT FROM runs WHERE status <> 'done' OR poisoned_at IS NOT NULL").fetchall() == []
    deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    assert beside.execute(deadlocks.encode()).fetchone() == {"deadlocks": 0}


def test_a_migration_that_was_killed_is_completed_by_the_next(
    postgres_url: str, beside: psycopg.Connection, later: Path
) -> None:
    later.write_text(REVISION.format(pause="SELECT pg_sleep(60)"))
    asleep = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
    with ThreadPoolExecutor(1) as pool:
        doomed = pool.submit(migrate.upgrade, postgres_url)
        (row,) = eventually(lambda: beside.execute(asleep.encode()).fetchall())
        beside.execute("SELECT pg_terminate_backend(%s)", (row["pid"],))
        with pytest.raises(StoreUnavailable):
            doomed.result(timeout=30)
    assert beside.execute("SELECT version_num FROM alembic_version").fetchall() == [{"version_num": "0001"}]
    later.write_text(REVISION.format(pause="SELECT"))
    migrate.upgrade(postgres_url)
    migrate.check(postgres_url)
    assert beside.execute("SELECT FROM pg_index WHERE NOT indisvalid").fetchall() == []
    assert beside.execute("SELECT FROM pg_locks WHERE locktype = 'advisory'").fetchall() == []
