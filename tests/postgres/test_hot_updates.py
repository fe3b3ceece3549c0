"""A retaining commit rewrites no index."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.rows import dict_row
from support.builders import a_commit
from support.clock import eventually
from support.scene import QUIETLY, RETAIN, Scene

from docket_celery.storage.contracts.values import QUIET, SYSTEM, Retain


def _updates(connection: psycopg.Connection) -> tuple[int, int]:
    """All updates of run rows, and those that were HOT. The server reports what ended sessions have done."""
    row = connection.execute(
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE schemaname = 'docket' AND relname = 'runs'"
    ).fetchone()
    return row["n_tup_upd"], row["n_tup_hot_upd"]


@pytest.mark.parametrize("schedule", [RETAIN, QUIETLY], ids=["telling", "quiet"])
def test_retaining_commits_are_hot_updates(place: Scene, beside: psycopg.Connection, schedule: Retain) -> None:
    place.start()
    token = place.hold()
    claimed_and_redeemed = 2  # Of these only the claim rewrites indexes.
    for number in range(200):
        place.clock.advance(0.05)
        place.commit("run-1", token, schedule=schedule, fields={"total": number})
    place.runs._database.sessions.close()
    with psycopg.connect(beside.info.dsn, autocommit=True, row_factory=dict_row) as watch:
        eventually(lambda: _updates(watch)[0] >= 200 + claimed_and_redeemed)
        updates, hot = _updates(watch)
    assert updates == 200 + claimed_and_redeemed
    assert hot >= 196


def test_a_quiet_commit_is_answered_without_a_row(place: Scene) -> None:
    place.start()
    token = place.hold()
    proposal = a_commit(place.run(), token, at=place.now, schedule=QUIETLY)
    assert place.runs.commit(SYSTEM, proposal) == QUIET


def test_a_redemption_is_a_hot_update(place: Scene, beside: psycopg.Connection) -> None:
    for number in range(5):
        place.start(f"run-{number}")
        place.redeem(place.lease())
    place.runs._database.sessions.close()
    with psycopg.connect(beside.info.dsn, autocommit=True, row_factory=dict_row) as watch:
        eventually(lambda: _updates(watch)[0] >= 10)
        assert _updates(watch) == (10, 5)


def test_the_claim_time_moves_only_after_a_third_of_the_ttl(place: Scene) -> None:
    place.start()
    token = place.hold()
    claimed_at = place.info().claimed_at
    place.clock.advance(RETAIN.ttl / 3)
    place.commit("run-1", token, schedule=RETAIN)
    assert place.info().claimed_at == claimed_at
    place.clock.advance(0.001)
    place.commit("run-1", token, schedule=RETAIN)
    assert place.info().claimed_at == place.now


@pytest.mark.parametrize("change", ["claim_abandons = 1", "status = 'running'"], ids=["of a number", "of the claim"])
def test_an_update_does_not_fetch_a_large_state(place: Scene, beside: psycopg.Connection, change: str) -> None:
    place.start()
    beside.execute("ALTER TABLE docket.runs ALTER COLUMN state SET STORAGE EXTERNAL")
    beside.execute("UPDATE docket.runs SET state = to_json(repeat('x', 1000000))")
    with beside.transaction():
        before = _blocks_out_of_line(beside)
        assert beside.execute(f"UPDATE docket.runs SET {change}".encode()).rowcount == 1
        assert _blocks_out_of_line(beside) == before


def _blocks_out_of_line(connection: psycopg.Connection) -> int:
    """Blocks of large values that this session has looked at, as it counts them itself before it reports them."""
    (row,) = connection.execute("""
        SELECT pg_stat_get_xact_blocks_fetched(reltoastrelid) AS blocks
        FROM pg_class WHERE oid = 'docket.runs'::regclass
    """).fetchall()
    return row["blocks"]
