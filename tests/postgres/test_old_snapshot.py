"""A forgotten transaction keeps every past version of a run alive; a claim does not walk over them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace
from psycopg.types.numeric import Float8, Int8
from support.builders import TTL, a_scan
from support.scene import Scene

from docket_celery.storage.contracts.claims import ClaimPolicy, Demand
from docket_celery.storage.postgres import open_storage
from docket_celery.storage.postgres.horizon import EVERYTHING, Horizon
from docket_celery.storage.postgres.queries import Queries
from docket_celery.testing import ManualClock, SequentialIds

RUNS, CYCLES = 20, 800
STATEMENTS = {"age": "claim_due", "tenants": "claim_due_by_tenant"}


@pytest.fixture
def busy(postgres_url: str, clock: ManualClock, ids: SequentialIds) -> Scene:
    """Twenty due runs in a store on the database's own clock."""
    scene = Scene(open_storage(postgres_url), clock, ids)
    for number in range(RUNS):
        scene.start(f"run-{number}")
    return scene


@pytest.fixture
def old_snapshot(beside: psycopg.Connection) -> Iterator[psycopg.Connection]:
    """A client that looked once and has forgotten its transaction."""
    with psycopg.connect(beside.info.dsn) as forgotten:
        forgotten.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        forgotten.execute("SELECT 1")
        yield forgotten


def _refill(order: str = "age", number: int = 0) -> ClaimPolicy:
    return a_scan(limit=1, order=order, fraction=number * 0.618 % 1, demand=Demand(gate="refill", slots=8))


def _cycle(scene: Scene, order: str) -> None:
    for number in range(CYCLES):
        (lease,) = scene.runs.claim_due(_refill(order, number)).leases
        scene.runs.release_claim(lease.run_id, lease.claim_token)


def _pages(connection: psycopg.Connection, order: str, horizon: Horizon) -> int:
    parameters = {
        "now": None, "gate": "refill", "interval": TTL, "slots": Int8(8), "limit": Int8(1), "ttl": TTL,
        "max_attempts": Int8(3), "delivery": "lease", "preference": None, "poison_reason": "x",
        "fraction": Float8(0.3), "cap": None, "ready_from": horizon.ready_from, "claimed_from": horizon.claimed_from,
    }  # fmt: skip
    explain = b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + Queries("docket")[STATEMENTS[order]]
    with connection.transaction(force_rollback=True):
        row = connection.execute(explain, parameters).fetchone()
    plan: dict[str, Any] = row["QUERY PLAN"][0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def _look_fully(scene: Scene, order: str) -> None:
    """The look at everything that comes once a second, now: what it saw does not depend on the machine's speed."""
    scene.runs._outlook = replace(scene.runs._outlook, looked_at=float("-inf"))
    (lease,) = scene.runs.claim_due(_refill(order)).leases
    scene.runs.release_claim(lease.run_id, lease.claim_token)


@pytest.mark.parametrize("order", STATEMENTS)
def test_a_refill_beside_an_old_snapshot_reads_few_pages_and_a_vacuum_afterwards_heals_a_full_look(
    busy: Scene, beside: psycopg.Connection, old_snapshot: psycopg.Connection, order: str
) -> None:
    beside.execute("ALTER TABLE runs SET (autovacuum_enabled = false)")
    _cycle(busy, order)
    everything = _pages(beside, order, EVERYTHING)
    assert everything > 300
    _look_fully(busy, order)
    assert _pages(beside, order, busy.runs._outlook.horizon) <= everything * 0.75
    old_snapshot.rollback()
    beside.execute("VACUUM runs")
    assert _pages(beside, order, EVERYTHING) <= 150


def _overlook(scene: Scene, beside: psycopg.Connection) -> None:
    """Puts run-7 below the horizon, and the next regular full look far away."""
    (lease,) = scene.runs.claim_due(_refill()).leases
    scene.runs.release_claim(lease.run_id, lease.claim_token)
    scene.runs._outlook = replace(scene.runs._outlook, looked_at=float("inf"))
    beside.execute("UPDATE runs SET wake_at = wake_at - interval '1 hour' WHERE id = 'run-7'")


def test_a_tick_finds_what_lies_below_the_horizon(busy: Scene, beside: psycopg.Connection) -> None:
    _overlook(busy, beside)
    (overlooking,) = busy.runs.claim_due(_refill()).leases
    assert overlooking.run_id != "run-7"
    (lease,) = busy.runs.claim_due(a_scan(limit=1, demand=Demand(gate="tick", slots=8))).leases
    assert lease.run_id == "run-7"


def test_a_scan_without_a_gate_that_finds_nothing_looks_below_the_horizon(
    busy: Scene, beside: psycopg.Connection
) -> None:
    _overlook(busy, beside)
    claimed = [busy.runs.claim_due(a_scan(limit=1)).leases[0].run_id for _ in range(RUNS)]
    assert claimed[-1] == "run-7"
    assert busy.runs.claim_due(a_scan(limit=1)).leases == ()


def test_a_refill_finds_at_its_next_full_look_what_lies_below_the_horizon(
    busy: Scene, beside: psycopg.Connection
) -> None:
    _overlook(busy, beside)
    busy.runs._outlook = replace(busy.runs._outlook, looked_at=0.0)
    (lease,) = busy.runs.claim_due(_refill()).leases
    assert lease.run_id == "run-7"


def test_a_lease_of_one_leaves_behind_what_it_has_walked_over(busy: Scene) -> None:
    (first,) = busy.runs.claim_due(_refill()).leases
    busy.runs._outlook = replace(busy.runs._outlook, looked_at=float("inf"))
    before = busy.runs._outlook.horizon
    leased = [busy.runs.claim_due(_refill()).leases[0].run_id for _ in range(3)]
    assert [first.run_id, *leased] == ["run-0", "run-1", "run-2", "run-3"]
    assert before.ready_from is not None
    assert busy.runs._outlook.horizon.ready_from > before.ready_from
    assert busy.runs._outlook.horizon.claimed_from == before.claimed_from


def test_a_take_leaves_behind_what_it_has_walked_over(busy: Scene) -> None:
    policy = replace(_refill(), preference="ready")
    busy.runs.take_due(policy, token="full look")
    busy.runs._outlook = replace(busy.runs._outlook, looked_at=float("inf"))
    before = busy.runs._outlook.horizon
    taken = [busy.runs.take_due(policy, token=f"token-{n}").batch.leases[0].run_id for n in range(3)]
    assert taken == ["run-1", "run-2", "run-3"]
    assert before.ready_from is not None
    assert busy.runs._outlook.horizon.ready_from > before.ready_from
    assert busy.runs._outlook.horizon.claimed_from == before.claimed_from
