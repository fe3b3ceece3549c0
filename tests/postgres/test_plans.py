"""What a claim reads depends on what is due, not on what was or will be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.types.numeric import Int8
from support.builders import TTL
from support.scene import Scene

from docket_celery.storage.postgres.queries import Queries

_ROWS = """
    INSERT INTO runs (id, graph_id, graph_hash, status, step, checkpoint_seq, event_seq, checkpoint_type, state,
                      started_at, updated_at, finished_at, wake_at, claim_token, claimed_at)
    SELECT %(prefix)s || n, r.graph_id, r.graph_hash, %(status)s, 1, 1, 1, 'run_initialized', '{"v":1}',
           now(), now(), %(finished)s::timestamptz, now() + %(wake)s::interval * n, %(token)s,
           now() + %(claimed)s::interval * n
    FROM runs r, generate_series(1, %(count)s) n WHERE r.id = 'run-1'
"""


def _fill(connection: psycopg.Connection, prefix: str, count: int, **parts: Any) -> None:
    given = {"status": "running", "finished": None, "wake": None, "token": None, "claimed": None}
    connection.execute(_ROWS, {**given, **parts, "prefix": prefix, "count": count})


@pytest.fixture
def history(place: Scene, beside: psycopg.Connection) -> psycopg.Connection:
    """20,000 ended runs, 20,000 that sleep, 20 due ones and 10 expired claims, never analysed."""
    place.start()
    beside.execute("ALTER TABLE runs SET (autovacuum_enabled = false)")
    _fill(beside, "done-", 20_000, status="done", finished="now")
    _fill(beside, "later-", 20_000, wake="1 hour")
    _fill(beside, "due-", 20, wake="-1 second")
    _fill(beside, "expired-", 10, token="t", claimed="-1 hour")
    return beside


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)


def _explained(connection: psycopg.Connection, mode: str) -> dict[str, Any]:
    parameters = {
        "now": None, "gate": "nudge", "interval": TTL, "slots": Int8(10), "limit": Int8(10), "ttl": TTL,
        "max_attempts": Int8(3), "delivery": "lease", "preference": None, "poison_reason": "x",
    }  # fmt: skip
    connection.execute(f"SET plan_cache_mode = {mode}".encode())
    statement = b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + Queries("docket")["claim_due"]
    with connection.transaction(force_rollback=True):
        row = connection.execute(statement, parameters, prepare=True).fetchone()
    plan: dict[str, Any] = row["QUERY PLAN"][0]["Plan"]
    return plan


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("state", ["never analysed", "analysed", "with 20,000 due"])
def test_a_claim_reads_the_partial_indexes_and_few_pages(history: psycopg.Connection, mode: str, state: str) -> None:
    if state == "with 20,000 due":
        _fill(history, "more-", 20_000, wake="-1 second")
    if state != "never analysed":
        history.execute("VACUUM ANALYZE runs")
    plan = _explained(history, mode)
    reads = [
        node for node in _nodes(plan) if node.get("Relation Name") == "runs" and node["Node Type"] != "ModifyTable"
    ]
    assert {node["Node Type"] for node in reads} <= {"Index Scan", "Index Only Scan"}
    assert {node["Index Name"] for node in reads} == {"runs_ready", "runs_claimed", "runs_pkey"}
    selected = [node for node in _nodes(plan) if node.get("Subplan Name") == "CTE chosen"]
    assert sum(node["Shared Hit Blocks"] + node["Shared Read Blocks"] for node in selected) <= 200
