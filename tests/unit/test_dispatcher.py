"""Scans: what is asked of the store, what goes out, and what becomes of leases that do not."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest
from support.faults import unreachable
from support.rig import Rig

from docket_celery import START, Graph
from docket_celery.dispatcher import LARGEST_BATCH, Dispatcher
from docket_celery.errors import StoreUnavailable
from docket_celery.storage.contracts.claims import Lease
from docket_celery.telemetry.hook import LeasesGranted, RunsPoisoned
from docket_celery.vehicle.outcomes import Parked

QUICK = Graph("quick").node("a", lambda: None).edge(START, "a")


class Broker:
    """Takes `room` leases and refuses the rest."""

    def __init__(self, room: int = 1_000) -> None:
        self.room = room
        self.taken: list[Lease] = []

    def __call__(self, leases: Sequence[Lease]) -> int:
        accepted = leases[: self.room]
        self.room -= len(accepted)
        self.taken += accepted
        return len(accepted)


def a_fleet(runs: int, **options: object) -> Rig:
    rig = Rig(max_in_flight=100, **options)
    for _ in range(runs):
        rig.start(QUICK)
    return rig


def test_a_tick_publishes_what_is_due_and_reports_it_once() -> None:
    rig, broker = a_fleet(3), Broker()
    batch = Dispatcher(rig.engine, broker).tick()
    assert tuple(broker.taken) == batch.leases
    assert [fact.leases for fact in rig.reported(LeasesGranted)] == [3]
    assert rig.drain(broker.taken[0]) == Parked(park="terminal")


def test_a_tick_after_another_in_the_same_interval_ends_at_its_gate() -> None:
    rig, broker = a_fleet(0), Broker()
    dispatcher = Dispatcher(rig.engine, broker)
    assert dispatcher.tick().scanned
    rig.start(QUICK)
    assert not dispatcher.tick().scanned
    assert len(dispatcher.nudge().leases) == 1
    assert rig.reported(LeasesGranted)[0].leases == 1


def test_a_nudge_publishes_all_but_the_first_lease_which_is_the_callers_own() -> None:
    rig, broker = a_fleet(3), Broker()
    own, *others = Dispatcher(rig.engine, broker).nudge().leases
    assert own.run_id == "run-1"
    assert broker.taken == others
    assert [fact.leases for fact in rig.reported(LeasesGranted)] == [3]
    assert rig.drain(own) == Parked(park="terminal")


def test_a_nudge_with_one_due_run_asks_nothing_of_the_broker() -> None:
    rig = a_fleet(1)

    def broken(leases: Sequence[Lease]) -> int:
        raise AssertionError("nothing to publish")

    assert len(Dispatcher(rig.engine, broken).nudge().leases) == 1


def test_a_run_that_is_due_alone_is_taken_and_the_next_timer_passed_on() -> None:
    rig = a_fleet(1)
    rig.start(QUICK, start_at=rig.clock.now() + timedelta(seconds=0.4))
    rig.nudges.after.clear()
    taken = Dispatcher(rig.engine, Broker()).take_alone()
    assert taken is not None
    assert [lease.run_id for lease in taken.batch.leases] == ["run-1"]
    assert rig.nudges.after == [pytest.approx(0.4)]
    assert rig.info("run-1").claim_attempts == 1


def test_of_several_due_runs_none_is_taken_alone() -> None:
    rig = a_fleet(2)
    assert Dispatcher(rig.engine, Broker()).take_alone() is None
    assert rig.nudges.after == [0.0, 0.0]


def test_a_nudge_whose_leases_cannot_be_published_keeps_its_own() -> None:
    rig, broker = a_fleet(4), Broker(room=1)
    own, *_ = Dispatcher(rig.engine, broker).nudge().leases
    assert [lease.run_id for lease in broker.taken] == ["run-2"]
    infos = [rig.info(f"run-{number}") for number in range(1, 5)]
    assert [info.claimed_at is None for info in infos] == [False, False, True, True]
    assert rig.drain(own) == Parked(park="terminal")


def test_a_scan_asks_for_free_slots_only() -> None:
    rig, broker = a_fleet(5), Broker()
    rig.engine.storage.fleet.register_worker("w1", 3, ttl=timedelta(minutes=1), orphan_ttl=rig.engine.orphan_ttl)
    rig = a_fleet(5)
    Dispatcher(rig.engine, broker).tick()
    policy = rig.runs.of("claim_due")[0][0][0]
    assert (policy.limit, policy.demand.slots, policy.demand.gate) == (LARGEST_BATCH, 100, "tick")
    assert policy.demand.interval == timedelta(seconds=1)


def test_after_the_first_lease_that_cannot_be_published_the_rest_is_given_back_in_one_call() -> None:
    rig, broker = a_fleet(5), Broker(room=2)
    Dispatcher(rig.engine, broker).tick()
    assert len(broker.taken) == 2
    assert [len(arguments[0]) for arguments, _ in rig.runs.of("release_claims")] == [3]
    infos = [rig.info(f"run-{number}") for number in range(1, 6)]
    assert [info.claimed_at is None for info in infos] == [False, False, True, True, True]
    assert {info.claim_attempts for info in infos} == {0}
    assert Dispatcher(rig.engine, Broker()).nudge().leases != ()


def test_a_broker_outage_poisons_nothing_however_long_it_lasts() -> None:
    rig = a_fleet(2, max_claim_attempts=1)
    dispatcher = Dispatcher(rig.engine, Broker(room=0))
    for _ in range(10):
        dispatcher.tick()
        rig.advance(1.0)
    assert rig.reported(RunsPoisoned) == []
    assert Dispatcher(rig.engine, Broker()).nudge().leases != ()


def test_leases_that_can_be_neither_published_nor_given_back_are_handed_out_again_after_expiry() -> None:
    rig = a_fleet(1)
    rig.runs.plan("release_claims", unreachable())
    (lost,) = Dispatcher(rig.engine, Broker(room=0)).tick().leases
    rig.expire()
    broker = Broker()
    Dispatcher(rig.engine, broker).tick()
    assert broker.taken[0].claim_token == lost.claim_token
    assert rig.reported(LeasesGranted)[-1].reissued == 1
    assert rig.drain(lost) == Parked(park="terminal")


@pytest.mark.parametrize("nudged", [False, True], ids=["tick", "nudge"])
def test_a_launch_that_raises_gives_everything_back_and_is_heard(nudged: bool) -> None:
    rig = a_fleet(2)

    def broken(leases: Sequence[Lease]) -> int:
        raise RuntimeError("launch")

    dispatcher = Dispatcher(rig.engine, broken)
    with pytest.raises(RuntimeError, match="launch"):
        dispatcher.nudge() if nudged else dispatcher.tick()
    assert [rig.info(f"run-{number}").claimed_at for number in (1, 2)] == [None, None]


def test_a_scan_that_only_poisoned_is_repeated() -> None:
    rig = a_fleet(1, max_claim_attempts=1)
    broker = Broker()
    rig.runs.redeem_claim(rig.lease(), token="dies")
    rig.expire()
    rig.start(QUICK)
    dispatcher = Dispatcher(rig.engine, broker)
    # Demand one, expired first: the exhausted run is met alone.
    dispatcher.refill()
    assert [fact.run_ids for fact in rig.reported(RunsPoisoned)] == []
    rig.start(QUICK)
    taken = dispatcher.refill()
    assert taken is not None
    assert [fact.run_ids for fact in rig.reported(RunsPoisoned)] == [("run-1",)]
    assert [lease.run_id for lease in taken.batch.leases] == ["run-3"]


def test_a_tick_that_only_poisoned_looks_again_past_its_own_gate() -> None:
    rig = Rig(max_in_flight=1, max_claim_attempts=1)
    rig.start(QUICK)
    rig.runs.redeem_claim(rig.lease(), token="dies")
    rig.expire()
    rig.start(QUICK)
    broker = Broker()
    Dispatcher(rig.engine, broker).tick()
    assert [fact.run_ids for fact in rig.reported(RunsPoisoned)] == [("run-1",)]
    assert [lease.run_id for lease in broker.taken] == ["run-2"]


def test_the_next_timer_is_passed_to_the_waker() -> None:
    rig = Rig()
    rig.start(QUICK, start_at=rig.clock.now() + timedelta(seconds=0.4))
    rig.nudges.after.clear()
    Dispatcher(rig.engine, Broker()).tick()
    assert rig.nudges.after == [0.4]


def test_a_database_that_is_away_fails_the_tick_loudly() -> None:
    rig = a_fleet(1)
    rig.runs.plan("claim_due", unreachable())
    with pytest.raises(StoreUnavailable):
        Dispatcher(rig.engine, Broker()).tick()
