"""Every illegal shape of a run row is refused by the schema itself."""

from __future__ import annotations

import re

import psycopg
import pytest
from psycopg import errors
from support.scene import Scene

ILLEGAL = {
    "healthy running with neither wake nor claim": "wake_at = NULL",
    "healthy running with both": "claim_token = 't', claimed_at = now()",
    "a token without its time": "wake_at = NULL, claim_token = 't'",
    "a claim time without its token": "claimed_at = now()",
    "redeemed without a claim": "redeemed = true",
    "poisoned with a wake": "poisoned_at = now(), poison_reason = 'x'",
    "poisoned with a claim": (
        "wake_at = NULL, claim_token = 't', claimed_at = now(), poisoned_at = now(), poison_reason = 'x'"
    ),
    "poisoned without a reason": "wake_at = NULL, poisoned_at = now()",
    "a reason without poison": "poison_reason = 'x'",
    "waiting with a wake": "status = 'waiting'",
    "waiting with a claim": "status = 'waiting', wake_at = NULL, claim_token = 't', claimed_at = now()",
    "waiting and poisoned": "status = 'waiting', wake_at = NULL, poisoned_at = now(), poison_reason = 'x'",
    "done with a wake": "status = 'done', finished_at = now()",
    "done and poisoned": (
        "status = 'done', finished_at = now(), wake_at = NULL, poisoned_at = now(), poison_reason = 'x'"
    ),
    "done without an end": "status = 'done', wake_at = NULL",
    "running with an end": "finished_at = now()",
    "an unknown status": "status = 'paused', wake_at = NULL, finished_at = now()",
    "a negative step": "step = -1",
    "a checkpoint before the first": "checkpoint_seq = 0",
    "a negative event": "event_seq = -1",
    "a negative attempt": "claim_attempts = -1",
    "a negative abandon": "claim_abandons = -1",
    "a negative undelivered": "undelivered = -1",
    "a negative inbox": "inbox_seq = -1",
    "a key without its digest": "start_key = 'k'",
    "a digest without its key": "input_digest = 'd'",
    "an empty token": "wake_at = NULL, claim_token = '', claimed_at = now()",
    "a token that is too long": "wake_at = NULL, claim_token = repeat('t', 256), claimed_at = now()",
    "an empty id": "id = ''",
    "an id that is too long": "id = repeat('i', 256)",
    "an empty key": "start_key = '', input_digest = 'd'",
    "a key that is too long": "start_key = repeat('k', 256), input_digest = 'd'",
}

LEGAL = {
    "claimed": "wake_at = NULL, claim_token = 't', claimed_at = now()",
    "claimed and redeemed": "wake_at = NULL, claim_token = 't', claimed_at = now(), redeemed = true",
    "poisoned": "wake_at = NULL, poisoned_at = now(), poison_reason = 'x'",
    "waiting": "status = 'waiting', wake_at = NULL",
    "done": "status = 'done', wake_at = NULL, finished_at = now()",
    "a wake that never comes": "wake_at = 'infinity'",
}


@pytest.mark.parametrize("change", ILLEGAL.values(), ids=ILLEGAL.keys())
def test_an_illegal_row_is_refused(place: Scene, beside: psycopg.Connection, change: str) -> None:
    place.start()
    with pytest.raises(errors.CheckViolation):
        beside.execute(f"UPDATE runs SET {change}".encode())


def test_the_rule_is_asked_by_an_update_of_each_column_that_it_reads(place: Scene, beside: psycopg.Connection) -> None:
    (row,) = beside.execute("""
        SELECT p.prosrc AS rule, array_agg(a.attname::text) AS columns
        FROM pg_trigger t
        JOIN pg_proc p ON p.oid = t.tgfoid
        JOIN pg_attribute a ON a.attrelid = t.tgrelid AND a.attnum = ANY (t.tgattr)
        WHERE t.tgrelid = 'docket.runs'::regclass AND t.tgname = 'runs_are_legal'
        GROUP BY p.prosrc
    """).fetchall()
    assert set(re.findall(r"NEW\.(\w+)", row["rule"])) == set(row["columns"])


def test_the_refusal_names_the_rule_and_the_row_but_no_token(place: Scene, beside: psycopg.Connection) -> None:
    place.start("run-1")
    with pytest.raises(errors.CheckViolation) as refused:
        beside.execute("UPDATE runs SET claim_token = 'secret', claimed_at = now()")
    diagnosis = refused.value.diag
    assert (diagnosis.schema_name, diagnosis.table_name, diagnosis.constraint_name) == (
        "docket",
        "runs",
        "runs_are_legal",
    )
    assert '"id" : "run-1", "status" : "running"' in str(diagnosis.message_detail)
    assert "secret" not in str(refused.value)


def test_an_illegal_row_is_refused_where_other_triggers_are_silent(place: Scene, beside: psycopg.Connection) -> None:
    place.start()
    beside.execute("SET session_replication_role = replica")
    with pytest.raises(errors.CheckViolation):
        beside.execute("UPDATE runs SET wake_at = NULL")


def test_what_a_trigger_of_somebody_else_makes_of_a_row_is_judged(place: Scene, beside: psycopg.Connection) -> None:
    place.start()
    beside.execute("""
        CREATE FUNCTION zz() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.wake_at = NULL; RETURN NEW; END';
        CREATE TRIGGER zz BEFORE UPDATE ON runs FOR EACH ROW EXECUTE FUNCTION zz();
    """)
    with pytest.raises(errors.CheckViolation):
        beside.execute("UPDATE runs SET status = 'running'")


def test_an_illegal_row_is_refused_when_it_is_inserted(place: Scene, beside: psycopg.Connection) -> None:
    place.start()
    another = "INSERT INTO runs SELECT (json_populate_record(r, %s)).* FROM runs r"
    with pytest.raises(errors.CheckViolation):
        beside.execute(another, ['{"id": "run-2", "wake_at": null}'])
    beside.execute(another, ['{"id": "run-2"}'])


@pytest.mark.parametrize("change", LEGAL.values(), ids=LEGAL.keys())
def test_a_legal_row_is_accepted(place: Scene, beside: psycopg.Connection, change: str) -> None:
    place.start()
    beside.execute(f"UPDATE runs SET {change}".encode())


def test_a_run_cannot_refer_to_another_owners_graph_version(place: Scene, beside: psycopg.Connection) -> None:
    place.start(tenant="acme")
    with pytest.raises(errors.ForeignKeyViolation):
        beside.execute("UPDATE runs SET tenant = 'other'")


BELONGING = {
    "run_fields": "INSERT INTO run_fields (run_id, name, value) VALUES (%s, 'noted', '1')",
    "run_chunks": "INSERT INTO run_chunks (run_id, name, seq, items) VALUES (%s, 'log', 1, '[1]')",
    "run_events": "INSERT INTO run_events (run_id, seq, type, step, at, data) VALUES (%s, 9, 'x', 1, now(), '{}')",
    "run_inbox": (
        "INSERT INTO run_inbox (run_id, seq, kind, attempt, body, created_at) VALUES (%s, 1, 'x', 'a', '{}', now())"
    ),
}


def _belonging(beside: psycopg.Connection, run_id: str) -> dict[str, int]:
    counts = {}
    for table in BELONGING:
        (row,) = beside.execute(f"SELECT count(*) FROM {table} WHERE run_id = %s".encode(), [run_id]).fetchall()
        counts[table] = row["count"]
    return counts


@pytest.fixture
def two_runs(place: Scene, beside: psycopg.Connection) -> tuple[str, str]:
    """Two runs, to each of which something belongs in every table."""
    going, staying = "going", "staying"
    for run_id in (going, staying):
        place.start(run_id)
        for statement in BELONGING.values():
            beside.execute(statement.encode(), [run_id])
    assert 0 not in _belonging(beside, going).values()
    return going, staying


def test_what_belongs_to_a_run_dies_with_it(two_runs: tuple[str, str], beside: psycopg.Connection) -> None:
    going, staying = two_runs
    before = _belonging(beside, staying)
    beside.execute("DELETE FROM runs WHERE id = %s", [going])
    assert set(_belonging(beside, going).values()) == {0}
    assert _belonging(beside, staying) == before


@pytest.mark.parametrize("removal", ["DELETE FROM runs", "TRUNCATE runs"])
def test_it_does_so_as_well_where_the_schema_has_been_renamed(
    two_runs: tuple[str, str], beside: psycopg.Connection, removal: str
) -> None:
    beside.execute('ALTER SCHEMA docket RENAME TO "once Docket"')
    beside.execute('SET search_path = "once Docket"')
    beside.execute(removal.encode())
    for run_id in two_runs:
        assert set(_belonging(beside, run_id).values()) == {0}


def test_nothing_is_left_behind_a_table_of_runs_that_is_emptied(
    two_runs: tuple[str, str], beside: psycopg.Connection
) -> None:
    beside.execute("TRUNCATE runs")
    for run_id in two_runs:
        assert set(_belonging(beside, run_id).values()) == {0}
