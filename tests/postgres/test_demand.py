"""Demand under concurrency: whatever scans run at once, they never hand out more than the slots there are."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from support.builders import a_scan
from support.clock import eventually
from support.scene import Scene

from benchmarks.exchanges import counted
from docket_celery.storage.contracts.claims import ClaimBatch, Demand
from docket_celery.storage.postgres import open_storage, scans


def _at_once(count: int, scan: Callable[[], ClaimBatch]) -> list[ClaimBatch]:
    start = threading.Barrier(count)

    def one(_: int) -> ClaimBatch:
        start.wait()
        return scan()

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def test_ticks_and_nudges_at_once_never_exceed_the_slots(place: Scene, postgres_url: str) -> None:
    storage = open_storage(postgres_url, max_connections=8)
    for number in range(40):
        place.start(f"run-{number}")
    for slots in range(2, 20, 2):
        for gate in ("tick", "nudge"):
            demand = Demand(gate=gate, slots=slots, interval=timedelta(0))
            _at_once(8, lambda: storage.runs.claim_due(a_scan(limit=100, demand=demand)))  # noqa: B023
            claimed = storage.fleet.backlog(orphan_ttl=timedelta(seconds=60)).claimed
            assert claimed <= slots
        # A nudge that waited looked afresh, so that the slots are full in the end.
        assert claimed == slots


def test_two_ticks_inside_one_interval_scan_once(place: Scene, postgres_url: str) -> None:
    storage = open_storage(postgres_url, max_connections=8)
    demand = Demand(gate="tick", slots=4, interval=timedelta(seconds=30))
    batches = _at_once(8, lambda: storage.runs.claim_due(a_scan(demand=demand)))
    assert [batch.scanned for batch in batches].count(True) == 1


def test_a_tick_a_little_early_is_let_in(place: Scene) -> None:
    demand = Demand(gate="tick", slots=4, interval=timedelta(seconds=1))
    assert place.scan(demand=demand).scanned
    place.clock.advance(0.94)
    assert not place.scan(demand=demand).scanned
    place.clock.advance(0.02)
    assert place.scan(demand=demand).scanned


def test_a_tick_passes_by_while_another_scan_holds_the_gate(place: Scene, beside: psycopg.Connection) -> None:
    place.start()
    with beside.transaction():
        beside.execute("SELECT FROM dispatch FOR UPDATE")
        assert not place.scan(demand=Demand(gate="tick", slots=4)).scanned
    assert len(place.scan(demand=Demand(gate="tick", slots=4)).leases) == 1


@pytest.mark.parametrize("order", ["age", "tenants"])
def test_a_nudge_goes_through_an_open_gate_in_one_exchange(place: Scene, postgres_url: str, order: Any) -> None:
    port = conninfo_to_dict(postgres_url)["port"]
    with counted(int(port)) as proxy:
        runs = open_storage(postgres_url.replace(f":{port}/", f":{proxy.port}/"), now=place.clock.now).runs
        nudge = a_scan(demand=Demand(gate="nudge", slots=4), order=order)
        runs.claim_due(nudge)
        place.start()
        assert proxy.of(lambda: runs.claim_due(nudge)) == 1
    assert place.info().claimed_at == place.now


@pytest.mark.parametrize("order", ["age", "tenants"])
def test_a_nudge_waits_for_a_scan_under_way_and_sees_what_came_meanwhile(
    place: Scene, beside: psycopg.Connection, monkeypatch: pytest.MonkeyPatch, order: Any
) -> None:
    monkeypatch.setattr(scans, "_GATE_TIMEOUT", "60s")
    with ThreadPoolExecutor(1) as pool, beside.transaction():
        beside.execute("UPDATE dispatch SET scans = scans + 1")
        nudged = pool.submit(place.scan, demand=Demand(gate="nudge", slots=4), order=order)
        waiting = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        with psycopg.connect(beside.info.dsn, autocommit=True) as watch:
            eventually(lambda: watch.execute(waiting).rowcount == 1)
        place.start()
    assert len(nudged.result(timeout=60).leases) == 1


def test_a_nudge_gives_up_when_a_scan_is_frozen_and_says_so(place: Scene, beside: psycopg.Connection) -> None:
    place.start()
    with beside.transaction():
        beside.execute("SELECT FROM dispatch FOR UPDATE")
        batch = place.scan(demand=Demand(gate="nudge", slots=4))
    assert not batch.scanned
    assert batch.leases == ()
    assert batch.now == place.now


def test_a_refill_is_not_held_up_by_the_gate_but_counts_the_slots(place: Scene, beside: psycopg.Connection) -> None:
    place.start("run-1")
    place.start("run-2")
    with beside.transaction():
        beside.execute("SELECT FROM dispatch FOR UPDATE")
        assert len(place.scan(demand=Demand(gate="refill", slots=1)).leases) == 1
        assert place.scan(demand=Demand(gate="refill", slots=1)).leases == ()
