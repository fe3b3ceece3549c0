"""What a claim reads depends on what is due, not on what was or will be; and it locks what it takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.sql import SQL
from psycopg.types.numeric import Float8, Int8
from support.builders import TTL
from support.plans import execution, explained, prepared

from docket_celery.embedded.postgres import EmbeddedPostgres
from docket_celery.storage.postgres.queries import Queries

TENANTS = 1_000
SCANS = {"age": ("claim_due", None), "tenants": ("claim_due_by_tenant", None), "cap": ("claim_due_by_tenant", 5)}

_OWNERS = """
    INSERT INTO graph_versions (tenant, graph_id, graph_hash, document, published_at)
    SELECT 'tenant-' || n, 'order', 'hash', '{}', now() FROM generate_series(0, %s) n
"""
_ROWS = """
    INSERT INTO runs (id, tenant, graph_id, graph_hash, status, step, checkpoint_seq, event_seq, checkpoint_type, state,
                      queue, started_at, updated_at, finished_at, wake_at, claim_token, claimed_at)
    SELECT %(prefix)s || n, 'tenant-' || n %% %(tenants)s, 'order', 'hash', %(status)s, 1, 1 + n %% 3, 1,
           'run_initialized', '{"v":1}', (n %% 3 = 0)::int, now(), now(), %(finished)s::timestamptz,
           now() + %(wake)s::interval * n, %(token)s, now() + %(claimed)s::interval * n
    FROM generate_series(1, %(count)s) n
"""


def _fill(connection: psycopg.Connection, prefix: str, count: int, **parts: Any) -> None:
    given = {
        "status": "running", "finished": None, "wake": None, "token": None, "claimed": None, "tenants": TENANTS,
    }  # fmt: skip
    connection.execute(_ROWS, {**given, **parts, "prefix": prefix, "count": count})


def _connect(url: str) -> psycopg.Connection[dict[str, Any]]:
    connection = psycopg.connect(url, autocommit=True, row_factory=dict_row)
    connection.execute("SET search_path = docket")
    return connection


@pytest.fixture(scope="module")
def long_history(postgres_server: EmbeddedPostgres, postgres_template: str) -> str:
    """A database to be copied: 100,000 ended runs, 100,000 that sleep, 20 due ones and 10 expired claims, of 1,000
    tenants, with the statistics of a table that held three runs.
    """
    name = "long_history"
    with _connect(postgres_server.create_database(name, template=postgres_template)) as connection:
        connection.execute("ALTER TABLE runs SET (autovacuum_enabled = false)")
        connection.execute(_OWNERS, [TENANTS])
        _fill(connection, "first-", 3, status="done", finished="now")
        connection.execute("ANALYZE runs")
        _fill(connection, "done-", 100_000, status="done", finished="now")
        _fill(connection, "later-", 100_000, wake="1 hour")
        _fill(connection, "due-", 20, wake="-1 second")
        _fill(connection, "expired-", 10, token="t", claimed="-1 hour")
    return name


_STATES = {
    "misleading statistics": [],
    "never analysed": ["DELETE FROM pg_statistic", "UPDATE pg_class SET reltuples = -1, relpages = 0"],
    "analysed": ["VACUUM ANALYZE runs"],
}


@pytest.fixture(scope="module", params=[(state, due) for state in _STATES for due in (20, 100_020)], ids=str)
def history(
    request: pytest.FixtureRequest, postgres_server: EmbeddedPostgres, long_history: str
) -> Iterator[tuple[psycopg.Connection[dict[str, Any]], int]]:
    """A copy of the long history in one state of its statistics, and how many runs are due in it."""
    state, due = request.param
    name = f"history_{request.param_index}"
    with _connect(postgres_server.create_database(name, template=long_history)) as connection:
        if due > 20:
            _fill(connection, "more-", due - 20, wake="-1 second")
        for statement in _STATES[state]:
            connection.execute(statement)
        yield connection, due


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)


_SCANNING = {
    "now": None, "gate": "refill", "interval": TTL, "slots": Int8(10), "limit": Int8(10), "ttl": TTL,
    "max_attempts": Int8(3), "delivery": "lease", "preference": None, "poison_reason": "x",
    "fraction": Float8(0.4), "cap": None, "ready_from": None, "claimed_from": None,
}  # fmt: skip


def _explained(connection: psycopg.Connection[dict[str, Any]], scan: str, mode: str, **parts: Any) -> dict[str, Any]:
    statement, cap = SCANS[scan]
    return explained(connection, statement, mode, _SCANNING | {"cap": None if cap is None else Int8(cap)} | parts)


def _reads(plan: dict[str, Any]) -> list[dict[str, Any]]:
    """Where the plan touches run rows, other than to write them."""
    relations = ("Relation Name", "Index Name")
    found = [node for node in _nodes(plan) if any(str(node.get(key, "")).startswith("runs") for key in relations)]
    return [node for node in found if node["Node Type"] not in ("ModifyTable", "Bitmap Heap Scan")]


def _selection(plan: dict[str, Any]) -> dict[str, Any]:
    """The part that selects and locks what the statement takes."""
    (chosen,) = [node for node in _nodes(plan) if node.get("Subplan Name") == "CTE chosen"]
    return chosen


def _locked(plan: dict[str, Any]) -> float:
    return sum(node["Actual Rows"] * node["Actual Loops"] for node in _nodes(plan) if node["Node Type"] == "LockRows")


def _rounding(connection: psycopg.Connection[Any], plan: dict[str, Any]) -> float:
    """How far `_locked` may be off: before version 18 a server told the average of a node's loops as a whole number."""
    if connection.info.server_version >= 180_000:
        return 0
    loops = [node["Actual Loops"] for node in _nodes(plan) if node["Node Type"] == "LockRows"]
    return sum(count / 2 for count in loops if count > 1)


def _buffers(node: dict[str, Any]) -> int:
    return int(node["Shared Hit Blocks"] + node["Shared Read Blocks"])


@pytest.mark.parametrize("limit", [1, 10])
@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("scan", SCANS)
def test_a_claim_reads_partial_indexes_and_few_pages_and_locks_what_it_takes(
    history: tuple[psycopg.Connection[dict[str, Any]], int], scan: str, mode: str, limit: int
) -> None:
    connection, due = history
    plan = _explained(connection, scan, mode, limit=Int8(limit))
    reads = _reads(plan)
    assert {node["Node Type"] for node in reads} <= {"Index Scan", "Index Only Scan", "Bitmap Index Scan"}
    indexes = {"runs_ready", "runs_claimed", "runs_pkey"}
    if scan != "age":
        indexes |= {"runs_turns", "runs_claimed_of_tenant"}
    assert {node["Index Name"] for node in reads} <= indexes
    assert _buffers(_selection(plan)) <= (200 if due == 20 else 500)
    assert _selection(plan)["Actual Rows"] == limit
    assert abs(_locked(plan) - limit) <= _rounding(connection, plan)


def test_poisoned_runs_are_listed_without_a_look_at_the_others(
    postgres_server: EmbeddedPostgres, long_history: str
) -> None:
    with _connect(postgres_server.create_database("healthy", template=long_history)) as connection:
        for statistics in _STATES["misleading statistics"], _STATES["analysed"]:
            for statement in statistics:
                connection.execute(statement)
            plan = explained(connection, "list_runs", "force_custom_plan", {"poisoned": True, "limit": Int8(51)})
            assert _buffers(plan) <= 10


@pytest.fixture(scope="module")
def one_among_sleepers(
    postgres_server: EmbeddedPostgres, long_history: str
) -> Iterator[psycopg.Connection[dict[str, Any]]]:
    """50,000 due runs of one tenant, which owns the oldest of them, among a thousand tenants that sleep."""
    with _connect(postgres_server.create_database("one_among_sleepers", template=long_history)) as connection:
        _fill(connection, "more-", 50_000, wake="-1 second", tenants=1)
        yield connection


@pytest.mark.parametrize("limit", [1, 10])
@pytest.mark.parametrize("scan", ["tenants", "cap"])
def test_sleeping_tenants_cost_a_bounded_look_and_leave_no_slot_free(
    one_among_sleepers: psycopg.Connection[dict[str, Any]], scan: str, limit: int
) -> None:
    plan = _explained(one_among_sleepers, scan, "force_generic_plan", limit=Int8(limit), preference="ready")
    assert _buffers(_selection(plan)) <= 500
    assert _selection(plan)["Actual Rows"] == limit


@pytest.fixture(scope="module")
def many_claims(postgres_server: EmbeddedPostgres, long_history: str) -> Iterator[psycopg.Connection[dict[str, Any]]]:
    """10,000 claims that hold, beside the long history."""
    with _connect(postgres_server.create_database("many_claims", template=long_history)) as connection:
        _fill(connection, "held-", 10_000, token="t", claimed="1 millisecond")
        yield connection


@pytest.mark.parametrize("scan", SCANS)
def test_a_refill_counts_no_more_claims_than_there_are_slots(
    many_claims: psycopg.Connection[dict[str, Any]], scan: str
) -> None:
    plan = _explained(many_claims, scan, "force_generic_plan", limit=Int8(1), slots=Int8(8))
    assert _buffers(plan) <= 50
    assert _locked(plan) == 0


@pytest.mark.parametrize("scan", SCANS)
def test_a_refill_of_a_fleet_with_ten_thousand_claims_out_takes_its_one(
    many_claims: psycopg.Connection[dict[str, Any]], scan: str
) -> None:
    plan = _explained(many_claims, scan, "force_generic_plan", limit=Int8(1), slots=Int8(10_001))
    assert _selection(plan)["Actual Rows"] == 1
    assert _buffers(plan) <= 1_000


_TAKING = {
    "token": "mine", "demanded": True, "slots": "20", "ttl": TTL, "max_attempts": "3", "preference": "ready",
}  # fmt: skip
_MOVING = {
    "id": "expired-1", "offered": "t", "token": "t", "claim_token": "t", "refresh_after": TTL, "checkpoint_seq": "2",
    "expected": "2", "expected_event_seq": "1", "graph_id": "order", "graph_hash": "hash", "status": "running",
    "step": "1", "event_seq": "1", "checkpoint_type": "x", "state": "{}", "updated_at": "now",
    "schedule": "immediate",
    "event_type_1": "x", "event_data_1": "{}", "event_step": "1", "event_at": "now",
}  # fmt: skip


def _shortly(connection: psycopg.Connection[dict[str, Any]], statement: str, mode: str, **parts: Any) -> dict[str, Any]:
    """The plan of a statement that moves or takes a run; NULL for what it names besides."""
    return explained(connection, statement, mode, _MOVING | _TAKING | parts)


def _looked_at(plan: dict[str, Any]) -> int:
    """Pages that a short look for a ready run has read, each once: the limit of `next`, which sets off the other two,
    is worked out above the node that finds and locks the run.
    """
    judged = [node for node in _nodes(plan) if node.get("Subplan Name") in ("CTE overdue", "CTE free")]
    locked = [node for node in _nodes(plan) if node["Node Type"] == "LockRows"]
    return sum(map(_buffers, judged + locked))


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize(
    "statement", ["take_ready", "lease_ready", "commit_release_and_take", "commit_release_and_lease"]
)
def test_one_ready_run_is_found_by_partial_indexes_and_few_pages_and_locked_alone(
    history: tuple[psycopg.Connection[dict[str, Any]], int], statement: str, mode: str
) -> None:
    connection, _ = history
    plan = _shortly(connection, statement, mode)
    assert [node["Actual Rows"] for node in _nodes(plan) if node.get("Subplan Name") == "CTE hit"] == [1]
    assert {node["Node Type"] for node in _reads(plan)} <= {"Index Scan", "Index Only Scan", "Bitmap Index Scan"}
    assert {node["Index Name"] for node in _reads(plan)} <= {"runs_ready", "runs_claimed", "runs_pkey"}
    assert _looked_at(plan) <= 20
    assert _locked(plan) == 1


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_a_run_that_is_not_alone_is_seen_by_partial_indexes_and_few_pages_and_not_locked(
    history: tuple[psycopg.Connection[dict[str, Any]], int], mode: str
) -> None:
    connection, _ = history
    connection.execute("BEGIN")
    connection.execute(
        "UPDATE runs SET wake_at = now(), claim_token = NULL, claimed_at = NULL WHERE id LIKE 'expired-%'"
    )
    plan = _shortly(connection, "take_alone", mode)
    connection.execute("ROLLBACK")
    assert (plan["Actual Rows"], _locked(plan)) == (0, 0)
    assert {node["Node Type"] for node in _reads(plan)} <= {"Index Scan", "Index Only Scan", "Bitmap Index Scan"}
    assert {node["Index Name"] for node in _reads(plan)} <= {"runs_ready", "runs_claimed", "runs_pkey"}
    assert _buffers(plan) <= 50


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_a_lease_that_is_left_to_the_long_scan_locks_nothing_and_reads_few_pages(
    history: tuple[psycopg.Connection[dict[str, Any]], int], mode: str
) -> None:
    connection, _ = history
    plan = _shortly(connection, "lease_ready", mode, preference="expired")
    assert (plan["Actual Rows"], _locked(plan)) == (1, 0)
    assert _buffers(plan) <= 30


@pytest.mark.parametrize("statement", ["take_ready", "lease_ready"])
def test_the_short_way_counts_no_more_claims_than_there_are_slots(
    many_claims: psycopg.Connection[dict[str, Any]], statement: str
) -> None:
    plan = _shortly(many_claims, statement, "force_generic_plan", slots="8")
    assert _buffers(plan) <= 50
    assert _locked(plan) == 0


@pytest.mark.parametrize("statement", ["commit_retain", "commit_retain_quietly", "commit_release", "redeem_claim"])
def test_a_transition_finds_its_row_by_the_primary_key_alone(
    history: tuple[psycopg.Connection[dict[str, Any]], int], statement: str
) -> None:
    connection, _ = history
    plan = _shortly(connection, statement, "force_generic_plan")
    runs = [node for node in _reads(plan) if node.get("Relation Name") == "runs"]
    assert {node["Index Name"] for node in runs} == {"runs_pkey"}


_TOGETHER = {
    "count": "2", "ids": "{expired-1,expired-2}", "tenants": "{NULL,NULL}", "graph_ids": "{order,order}",
    "graph_hashes": "{hash,hash}", "claim_tokens": "{t,t}", "expected_seqs": "{2,3}", "expected_event_seqs": "{1,1}",
    "statuses": "{running,running}", "steps": "{1,1}", "last_event_seqs": "{1,1}", "checkpoint_types": "{x,x}",
    "states": "{\"{}\",\"{}\"}", "commit_ids": "{a,b}", "updated_ats": "{now,now}", "finished_ats": "{NULL,NULL}",
    "refresh_afters": "{20,NULL}", "schedules": "{NULL,immediate}", "wake_ats": "{NULL,NULL}", "inbox_seqs": "{0,0}",
    "replaced_ids": "{expired-1,expired-2}", "replaced_names": "{f,h}", "replaced_values": "{1,2}",
    "appended_ids": "{expired-1}", "appended_names": "{g}", "appended_items": "{[1]}",
    "event_ids": "{expired-1}", "event_seqs": "{1}", "event_types": "{x}", "event_steps": "{1}",
    "event_ats": "{now}", "event_nodes": "{NULL}", "event_data": "{\"{}\"}",
    "asking_ids": "{expired-2}", "tokens": "{mine}", "preferences": "{ready}",
}  # fmt: skip


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("statement", ["commit_all_changing", "commit_all_changing_and_take"])
def test_commits_together_find_their_rows_by_the_primary_key_and_lock_just_these(
    history: tuple[psycopg.Connection[dict[str, Any]], int], statement: str, mode: str
) -> None:
    connection, _ = history
    taking = statement.endswith("take")
    plan = _shortly(connection, statement, mode, **_TOGETHER)
    moved = [node["Actual Rows"] for node in _nodes(plan) if node.get("Subplan Name") in ("CTE moved", "CTE hit")]
    assert moved == [2, 1] if taking else [2]
    reads = [node for node in _nodes(plan) if str(node.get("Relation Name", node.get("Index Name"))).startswith("run")]
    reads = [node for node in reads if node["Node Type"] not in ("ModifyTable", "Bitmap Heap Scan")]
    assert {node["Node Type"] for node in reads} <= {"Index Scan", "Index Only Scan", "Bitmap Index Scan"}
    of_runs = {node["Index Name"] for node in _reads(plan)}
    of_fields = {"run_chunks_pkey"}
    assert of_runs - of_fields <= ({"runs_pkey", "runs_ready", "runs_claimed"} if taking else {"runs_pkey"})
    assert _locked(plan) == 2 + taking


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_redemptions_together_find_their_rows_by_the_primary_key_and_lock_just_these(
    history: tuple[psycopg.Connection[dict[str, Any]], int], mode: str
) -> None:
    connection, _ = history
    plan = _shortly(
        connection,
        "redeem_claims",
        mode,
        count="2",
        ids="{expired-1,expired-2}",
        offered="{t,t}",
        tokens="{mine,other}",
        checkpoint_seqs="{2,3}",
        refresh_afters="{20 s,20 s}",
    )
    assert [node["Actual Rows"] for node in _nodes(plan) if node.get("Subplan Name") == "CTE hit"] == [2]
    runs = [node for node in _reads(plan) if node.get("Relation Name") == "runs"]
    assert {node["Index Name"] for node in runs} == {"runs_pkey"}
    assert _locked(plan) == 2


_OF_MANY_ROWS = {"list_runs", "insert_runs", "backlog", "prune_runs", "prune_events", "count_prunable", "listen"}
"""Statements that read or write by the page, are not prepared, or run once in a while."""


@pytest.fixture(scope="module")
def empty(postgres_server: EmbeddedPostgres, postgres_template: str) -> Iterator[psycopg.Connection[dict[str, Any]]]:
    """A database in which nothing has happened yet."""
    with _connect(postgres_server.create_database("empty", template=postgres_template)) as connection:
        connection.execute("SET plan_cache_mode = force_generic_plan")
        yield connection


@pytest.mark.parametrize("name", sorted(set(Queries("docket").names()) - _OF_MANY_ROWS))
def test_a_plan_that_was_made_while_the_tables_were_empty_looks_rows_up(
    empty: psycopg.Connection[dict[str, Any]], name: str
) -> None:
    """A session keeps such a plan until the tables have been analysed, however many rows there are by then."""
    with prepared(empty, name):
        row = empty.execute(SQL("EXPLAIN (FORMAT JSON) ") + execution(name, {})).fetchone()
    assert row is not None
    nodes = list(_nodes(row["QUERY PLAN"][0]["Plan"]))
    walked = [node["Relation Name"] for node in nodes if node["Node Type"] == "Seq Scan"]
    assert not [table for table in walked if table.startswith("run")]


@pytest.mark.parametrize("gate", ["tick", "nudge", "refill", "open"])
@pytest.mark.parametrize(
    "name",
    [
        "take_ready",
        "lease_ready",
        "claim_due",
        "claim_due_by_tenant",
        "commit_release_and_take",
        "commit_all_and_take",
        "commit_retain_changing",
        "read_values",
    ],
)
def test_beside_a_long_backlog_a_statement_is_not_planned_anew_each_time(
    history: tuple[psycopg.Connection[dict[str, Any]], int], name: str, gate: str
) -> None:
    """The server does so wherever a plan that is cut to its parameters promises more than the one it keeps."""
    connection, _ = history
    connection.execute("SET plan_cache_mode = auto")
    with prepared(connection, name):
        for preference in (None, "ready") * 5:
            with connection.transaction(force_rollback=True):
                parts = {"gate": gate, "demanded": gate != "open", "preference": preference, "names": "{f}"}
                connection.execute(execution(name, _SCANNING | _MOVING | _TAKING | _TOGETHER | parts))
        plans = "SELECT custom_plans, generic_plans FROM pg_prepared_statements WHERE name = %s"
        assert connection.execute(plans, [name]).fetchone() == {"custom_plans": 5, "generic_plans": 5}
