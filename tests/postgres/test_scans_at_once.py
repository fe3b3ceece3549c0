"""Scans that meet: what a rival holds is passed over, no slot stays free for it, and a cap is kept."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from support.builders import a_scan
from support.clock import eventually
from support.scene import Scene

from docket_celery.storage.contracts.claims import ClaimBatch, ClaimPolicy, Demand
from docket_celery.storage.contracts.values import Release
from docket_celery.storage.postgres import open_storage


def _due(place: Scene, tenant: str | None, count: int) -> None:
    for number in range(count):
        wake = place.now - timedelta(seconds=count - number)
        place.start(f"{tenant}-{number:03}", tenant=tenant, schedule=Release(kind="at", at=wake))


def _turns(**parts: Any) -> ClaimPolicy:
    return a_scan(**({"order": "tenants"} | parts))


def _at_once(url: str, policies: list[ClaimPolicy]) -> list[ClaimBatch]:
    """One scan for each policy, all begun at the same moment."""
    storage = open_storage(url, max_connections=len(policies))
    start = threading.Barrier(len(policies))

    def one(policy: ClaimPolicy) -> ClaimBatch:
        start.wait()
        return storage.runs.claim_due(policy)

    with ThreadPoolExecutor(len(policies)) as pool:
        return list(pool.map(one, policies))


def _ids(*batches: ClaimBatch) -> list[str]:
    return sorted(lease.run_id for batch in batches for lease in batch.leases)


def test_a_batch_is_filled_past_the_rows_that_a_rival_holds(place: Scene, beside: psycopg.Connection) -> None:
    _due(place, "a", 10)
    with beside.transaction():
        beside.execute("SELECT FROM runs WHERE id < 'a-004' FOR UPDATE")
        assert _ids(place.scan(limit=4)) == ["a-004", "a-005", "a-006", "a-007"]


@pytest.mark.parametrize("held", ["x", "r"])
def test_what_a_rival_holds_of_one_class_is_made_up_for_by_the_other(
    place: Scene, beside: psycopg.Connection, held: str
) -> None:
    for number in range(4):
        place.start(f"x{number}")
    place.scan(limit=4)
    place.expire()
    for number in range(4):
        place.start(f"r{number}")
    other = "r" if held == "x" else "x"
    with beside.transaction():
        beside.execute("SELECT FROM runs WHERE id LIKE %s FOR UPDATE", [held + "%"])
        assert _ids(place.scan(limit=4)) == [f"{other}{number}" for number in range(4)]


@pytest.mark.parametrize("order", ["age", "tenants"])
def test_claimers_at_once_take_every_run_once(place: Scene, postgres_url: str, order: str) -> None:
    for tenant in ("a", "b", "c", None):
        _due(place, tenant, 50)
    taken: list[str] = []
    for round in range(10):
        policies = [a_scan(limit=5, order=order, fraction=number / 4, now=place.now) for number in range(4)]
        batches = _at_once(postgres_url, policies)
        assert all(batch.leases for batch in batches), round
        taken += _ids(*batches)
    while leases := _ids(place.scan(order=order)):
        taken += leases
    assert len(taken) == len(set(taken)) == 200


def test_a_tenant_whose_rows_a_rival_holds_does_not_keep_a_slot_free(place: Scene, beside: psycopg.Connection) -> None:
    _due(place, "a", 3)
    _due(place, "b", 1)
    with beside.transaction():
        beside.execute("SELECT FROM runs WHERE tenant = 'a' FOR UPDATE")
        assert _ids(place.scan(order="tenants", limit=1, fraction=0.0)) == ["b-000"]


@pytest.mark.parametrize("gate", ["refill", "nudge", None])
def test_scans_at_once_never_exceed_a_tenants_cap_and_reach_it(place: Scene, postgres_url: str, gate: Any) -> None:
    _due(place, "a", 60)
    _due(place, "b", 60)
    demand = None if gate is None else Demand(gate=gate, slots=1_000)
    for cap in range(2, 20, 3):
        _at_once(postgres_url, [_turns(limit=3, tenant_cap=cap, demand=demand, now=place.now)] * 6)
        held = [place.info(run_id).claimed_at is not None for run_id in ("a-000", "b-000")]
        assert held == [True, True]
        claimed = _claims(place)
        assert max(claimed.values()) <= cap
    while place.scan(order="tenants", tenant_cap=20).leases:
        pass
    assert _claims(place) == {"a": 20, "b": 20}


def _claims(place: Scene) -> dict[str, int]:
    runs = {tenant: [f"{tenant}-{number:03}" for number in range(60)] for tenant in ("a", "b")}
    return {tenant: sum(place.info(run_id).claimed_at is not None for run_id in ids) for tenant, ids in runs.items()}


def test_a_tenant_that_another_scan_is_counting_has_no_turn_and_the_others_go_on(
    place: Scene, beside: psycopg.Connection
) -> None:
    _due(place, "a", 4)
    _due(place, "b", 2)
    place.scan(order="tenants", limit=2, tenant_cap=2)
    with beside.transaction():
        beside.execute("SELECT FROM tenant_turns WHERE tenant = 'a' FOR UPDATE")
        assert _ids(place.scan(order="tenants", limit=4, tenant_cap=2)) == ["b-001"]
    assert _ids(place.scan(order="tenants", limit=4, tenant_cap=2)) == ["a-001"]


def test_a_claim_that_commits_while_a_scan_waits_for_a_new_tenant_is_counted(
    place: Scene, beside: psycopg.Connection, postgres_url: str
) -> None:
    _due(place, "a", 3)
    with psycopg.connect(postgres_url) as rival, ThreadPoolExecutor(1) as pool:
        rival.execute("INSERT INTO docket.tenant_turns (tenant) VALUES ('a')")
        rival.execute(
            "UPDATE docket.runs SET wake_at = NULL, claim_token = 't', claimed_at = %s WHERE id = 'a-002'", [place.now]
        )
        scan = pool.submit(place.scan, order="tenants", limit=1, tenant_cap=1)
        waiting = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        eventually(lambda: beside.execute(waiting).rowcount == 1)
        rival.commit()
        assert scan.result().leases == ()


def test_a_steal_waits_for_no_cap(place: Scene, beside: psycopg.Connection) -> None:
    _due(place, "a", 2)
    place.scan(order="tenants", tenant_cap=2)
    place.expire()
    with beside.transaction():
        beside.execute("SELECT FROM tenant_turns FOR UPDATE")
        assert place.scan(order="tenants", tenant_cap=1).reissued == 2
