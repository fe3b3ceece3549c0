"""The fleet: demand judged inside the claim, the tick's gate, and the totals that operators read."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from support.builders import TTL
from support.scene import RETAIN, Scene

from docket_celery.run.document import RunStatus
from docket_celery.storage.contracts.claims import ClaimBatch, Demand
from docket_celery.storage.contracts.fleet import Backlog, WorkerSlots
from docket_celery.storage.contracts.values import Release

INTERVAL = timedelta(seconds=5)
MICROSECOND = timedelta(microseconds=1)
MINUTE = timedelta(minutes=1)


def _scan(scene: Scene, gate: Any = "nudge", slots: int | None = None, **parts: Any) -> ClaimBatch:
    return scene.scan(demand=Demand(gate=gate, slots=slots, interval=INTERVAL), **parts)


def _taken(scene: Scene, **parts: Any) -> int:
    return len(_scan(scene, **parts).leases)


@pytest.fixture
def busy(scene: Scene) -> Scene:
    """Nine due runs."""
    for number in range(9):
        scene.start(f"run-{number}")
    return scene


# -- demand -----------------------------------------------------------------------------------------------------------


def test_no_registered_slot_counts_as_one(busy: Scene) -> None:
    assert _taken(busy) == 1
    assert _taken(busy) == 0


def test_demand_is_the_slots_of_all_live_workers(busy: Scene) -> None:
    busy.storage.fleet.register_worker("w1", 2, ttl=MINUTE, orphan_ttl=TTL)
    busy.storage.fleet.register_worker("w2", 3, ttl=MINUTE, orphan_ttl=TTL)
    assert _taken(busy) == 5


def test_a_configured_number_replaces_the_registered_one(busy: Scene) -> None:
    busy.storage.fleet.register_worker("w1", 2, ttl=MINUTE, orphan_ttl=TTL)
    assert _taken(busy, slots=4) == 4


def test_the_limit_still_bounds_a_larger_demand(busy: Scene) -> None:
    assert _taken(busy, slots=8, limit=3) == 3


def test_unexpired_claims_of_every_kind_are_taken_off(busy: Scene) -> None:
    unredeemed, redeemed = busy.scan(limit=2).leases
    busy.redeem(redeemed)
    busy.scan(limit=1, delivery="direct")
    assert unredeemed.run_id != redeemed.run_id
    assert _taken(busy, slots=5) == 2
    assert _taken(busy, slots=5) == 0


def test_a_claim_counts_until_its_ttl_is_over(busy: Scene) -> None:
    busy.scan(limit=2)
    busy.clock.advance(TTL)
    assert _taken(busy, slots=2) == 0
    busy.clock.advance(timedelta(microseconds=1))
    assert _taken(busy, slots=2) == 2


def test_a_retained_claim_keeps_its_slot_and_a_released_one_frees_it(busy: Scene) -> None:
    lease = busy.lease(limit=1)
    token = busy.redeem(lease)
    busy.commit(lease.run_id, token, schedule=RETAIN)
    assert _taken(busy, slots=1) == 0
    busy.commit(lease.run_id, token, status=RunStatus.DONE)
    assert _taken(busy, slots=1) == 1


def test_more_claims_than_slots_leave_no_demand(busy: Scene) -> None:
    busy.scan(limit=5)
    batch = _scan(busy, slots=2)
    assert (batch.leases, batch.poisoned, batch.scanned) == ((), (), True)


def test_a_demand_narrowed_to_one_serves_the_preferred_class(scene: Scene) -> None:
    scene.start("x")
    scene.hold()
    scene.expire()
    scene.clock.advance(1)
    scene.start("r")
    batch = _scan(scene, slots=1, preference="ready")
    assert [lease.run_id for lease in batch.leases] == ["r"]


def test_registering_again_replaces_and_renews(busy: Scene) -> None:
    fleet = busy.storage.fleet
    fleet.register_worker("w1", 2, ttl=MINUTE, orphan_ttl=TTL)
    busy.clock.advance(50)
    fleet.register_worker("w1", 3, ttl=MINUTE, orphan_ttl=TTL)
    busy.clock.advance(50)
    assert _taken(busy) == 3


def test_a_registration_runs_out_on_the_stores_clock(busy: Scene) -> None:
    busy.storage.fleet.register_worker("w1", 4, ttl=MINUTE, orphan_ttl=TTL)
    busy.clock.advance(MINUTE + timedelta(seconds=1))
    assert _taken(busy) == 1


def test_a_worker_takes_its_registration_back(busy: Scene) -> None:
    fleet = busy.storage.fleet
    fleet.register_worker("w1", 2, ttl=MINUTE, orphan_ttl=TTL)
    fleet.register_worker("w2", 3, ttl=MINUTE, orphan_ttl=TTL)
    fleet.unregister_worker("w2")
    fleet.unregister_worker("unknown")
    assert _taken(busy) == 2


# -- the gate ---------------------------------------------------------------------------------------------------------


def test_a_second_tick_in_the_interval_does_not_scan(busy: Scene) -> None:
    first = _scan(busy, "tick", slots=2)
    second = _scan(busy, "tick", slots=9)
    assert (len(first.leases), first.scanned) == (2, True)
    assert (second.leases, second.poisoned, second.scanned) == ((), (), False)


def test_a_tick_one_interval_later_scans(busy: Scene) -> None:
    _scan(busy, "tick", slots=1)
    busy.clock.advance(INTERVAL)
    assert _scan(busy, "tick", slots=2).scanned


def test_a_tick_that_beat_sends_a_little_early_still_scans(busy: Scene) -> None:
    _scan(busy, "tick", slots=1)
    busy.clock.advance(INTERVAL * 0.94)
    assert not _scan(busy, "tick", slots=2).scanned
    busy.clock.advance(INTERVAL * 0.02)
    assert _scan(busy, "tick", slots=2).scanned


def test_a_scan_under_a_clock_that_was_set_back_since_keeps_no_tick_out(busy: Scene) -> None:
    _scan(busy, "tick", slots=1)
    busy.clock.advance(-INTERVAL)
    assert not _scan(busy, "tick", slots=2).scanned
    busy.clock.advance(-MICROSECOND)
    assert _scan(busy, "tick", slots=2).scanned


def test_a_tick_that_found_nothing_holds_the_gate_too(scene: Scene) -> None:
    assert _scan(scene, "tick").scanned
    scene.start()
    assert not _scan(scene, "tick").scanned


@pytest.mark.parametrize("gate", ["nudge", "refill"])
def test_nudge_and_refill_pass_a_tick_of_the_same_interval(busy: Scene, gate: str) -> None:
    _scan(busy, "tick", slots=1)
    batch = _scan(busy, gate, slots=2, limit=1)
    assert (len(batch.leases), batch.scanned) == (1, True)


def test_a_nudge_has_done_the_work_of_a_tick_of_the_same_interval(busy: Scene) -> None:
    _scan(busy, "nudge", slots=1)
    assert not _scan(busy, "tick", slots=9).scanned


def test_a_refill_leaves_the_gate_to_the_ticks(busy: Scene) -> None:
    _scan(busy, "refill", slots=1)
    assert _scan(busy, "tick", slots=9).scanned


@pytest.mark.parametrize("gate", ["tick", "nudge", "refill"])
def test_every_gate_is_bounded_by_the_free_slots(busy: Scene, gate: str) -> None:
    busy.scan(limit=2)
    assert len(_scan(busy, gate, slots=3).leases) == 1
    busy.clock.advance(INTERVAL)
    assert len(_scan(busy, gate, slots=3).leases) == 0


def test_a_scan_without_demand_knows_no_gate(busy: Scene) -> None:
    _scan(busy, "tick", slots=1)
    assert len(busy.scan().leases) == 8


# -- totals -----------------------------------------------------------------------------------------------------------


def _backlog(scene: Scene, **parts: int) -> Backlog:
    return scene.storage.fleet.backlog(orphan_ttl=TTL, **parts)


def test_an_empty_store_has_an_empty_backlog(scene: Scene) -> None:
    assert _backlog(scene) == Backlog(
        now=scene.now,
        due=0,
        oldest_due_at=None,
        next_wake_at=None,
        claimed=0,
        unredeemed=0,
        undelivered=0,
        poisoned=0,
        last_scan_at=None,
        workers=(),
    )


def test_the_backlog_tells_due_sleeping_claimed_and_poisoned_runs_apart(scene: Scene) -> None:
    scene.start("poisoned")
    scene.poison("poisoned")
    for run_id in ("leased", "redeemed"):
        scene.start(run_id)
    leases = {lease.run_id: lease for lease in scene.scan().leases}
    scene.redeem(leases["redeemed"])
    oldest = scene.now
    scene.start("due-1")
    scene.clock.advance(3)
    scene.start("due-2")
    soon = scene.now + timedelta(seconds=4)
    scene.start("asleep", schedule=Release(kind="at", at=soon))
    scene.start("asleep longer", schedule=Release(kind="at", at=soon + MINUTE))
    scene.start("waiting", status=RunStatus.WAITING)
    scene.start("done", status=RunStatus.DONE)
    backlog = _backlog(scene)
    assert (backlog.due, backlog.oldest_due_at, backlog.next_wake_at) == (2, oldest, soon)
    assert (backlog.claimed, backlog.unredeemed, backlog.poisoned) == (2, 1, 1)


def test_the_backlog_tells_leases_that_nobody_took_from_those_under_way(scene: Scene) -> None:
    scene.start("run-1")
    scene.scan()
    assert (_backlog(scene).unredeemed, _backlog(scene).undelivered) == (1, 0)
    scene.clock.advance(TTL.total_seconds() + 1)
    (again,) = scene.scan().leases
    assert (_backlog(scene).unredeemed, _backlog(scene).undelivered) == (1, 1)
    scene.redeem(again)
    assert (_backlog(scene).unredeemed, _backlog(scene).undelivered) == (0, 0)


def test_counts_stop_at_their_limit(busy: Scene) -> None:
    assert _backlog(busy, count_limit=4).due == 4


def test_the_backlog_shows_the_last_tick_and_the_live_workers(scene: Scene) -> None:
    fleet = scene.storage.fleet
    fleet.register_worker("w2", 3, ttl=MINUTE, orphan_ttl=TTL)
    fleet.register_worker("w1", 2, ttl=timedelta(seconds=1), orphan_ttl=TTL)
    seen_at = scene.now
    _scan(scene, "tick")
    scanned_at = scene.now
    scene.clock.advance(10)
    backlog = _backlog(scene)
    assert backlog.last_scan_at == scanned_at
    assert backlog.workers == (WorkerSlots(worker="w2", slots=3, orphan_ttl=TTL, seen_at=seen_at),)


def test_the_backlog_shows_by_which_ttl_each_worker_judges_claims(scene: Scene) -> None:
    fleet = scene.storage.fleet
    fleet.register_worker("w1", 1, ttl=MINUTE, orphan_ttl=timedelta(seconds=30))
    fleet.register_worker("w2", 1, ttl=MINUTE, orphan_ttl=timedelta(days=400, microseconds=1))
    fleet.register_worker("w1", 1, ttl=MINUTE, orphan_ttl=timedelta(seconds=2.5))
    ttls = {worker.worker: worker.orphan_ttl for worker in _backlog(scene).workers}
    assert ttls == {"w1": timedelta(seconds=2.5), "w2": timedelta(days=400, microseconds=1)}
