"""The stand-in renews what a living process is late to renew, and nothing else."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pytest
from support.clock import eventually
from support.faults import FaultyStore, unreachable
from support.rig import Rig

from docket_celery import START, Graph
from docket_celery.errors import StoreUnavailable
from docket_celery.renewal import GRACE, Held, Holder, Ledger, StandIn

QUICK = Graph("quick").node("a", lambda: None).edge(START, "a")
TTL = 600.0
LATE = 250.0
"""Seconds after which a claim with this TTL is late."""


@dataclass
class Pool:
    """Children that hold one redeemed claim each, renewed at 0, with work until 2000; the test begins each look."""

    children: int = 1
    stopped: set[Holder] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.rig = Rig()
        self.runs: FaultyStore = self.rig.runs
        self.ledger = Ledger(bytearray(Ledger.size(self.children)))
        self.stand_in = StandIn(
            self.rig.runs,
            self.ledger,
            is_at_work=lambda holder: holder not in self.stopped,
            orphan_ttl=TTL,
            monotonic=self.rig.clock.monotonic,
        )
        self.held = [self._claimed(place) for place in range(self.children)]

    def _claimed(self, place: int) -> Held:
        self.rig.start(QUICK)
        lease = self.rig.lease()
        self.runs.redeem_claim(lease, token=f"ours-{place}")
        held = Held(lease.run_id, f"ours-{place}", 2_000.0)
        held.renewed_at = 0.0
        self.ledger.write(place, Holder(pid=place + 1, born=0), held)
        return held

    @property
    def renewed(self) -> list[set[str]]:
        """The runs of each statement so far."""
        return [{run_id for run_id, _ in claims} for (claims,), _ in self.runs.of("refresh_claims")]


def test_a_process_that_renews_in_time_is_left_to_itself() -> None:
    pool = Pool()
    pool.rig.advance(LATE - 1.0)
    pool.stand_in.look()
    pool.held[0].renewed_at = LATE - 1.0
    pool.rig.advance(LATE - 1.0)
    pool.stand_in.look()
    assert pool.renewed == []


def test_those_who_are_late_are_renewed_in_one_statement_and_their_processes_learn_of_it() -> None:
    pool = Pool(3)
    pool.held[1].renewed_at = 100.0
    pool.rig.advance(LATE)
    pool.stand_in.look()
    assert pool.renewed == [{"run-1", "run-3"}]
    assert [held.renewed_at for held in pool.held] == [LATE, 100.0, LATE]
    assert pool.rig.info("run-1").claimed_at == pool.rig.clock.now()
    pool.stand_in.look()
    assert len(pool.renewed) == 1


def test_it_goes_on_until_the_vehicle_is_overdue() -> None:
    pool = Pool()
    for _ in range(10):
        pool.rig.advance(LATE)
        pool.stand_in.look()
    assert len(pool.renewed) == 8
    pool.held[0].until = pool.rig.clock.monotonic() - GRACE + 0.1
    pool.stand_in.look()
    assert len(pool.renewed) == 9


def test_a_process_that_is_stopped_or_gone_keeps_nothing() -> None:
    pool = Pool(2)
    pool.stopped.add(Holder(pid=1, born=0))
    pool.rig.advance(LATE)
    pool.stand_in.look()
    assert pool.renewed == [{"run-2"}]


def test_a_claim_that_is_shown_no_longer_is_renewed_no_longer() -> None:
    pool = Pool()
    pool.ledger.clear(0, pool.held[0])
    pool.rig.advance(LATE)
    pool.stand_in.look()
    assert pool.renewed == []


def test_a_claim_that_somebody_else_has_by_now_is_not_touched() -> None:
    pool = Pool()
    pool.rig.expire()
    pool.runs.redeem_claim(pool.rig.lease(), token="thief")
    taken_at = pool.rig.info("run-1").claimed_at
    pool.rig.advance(LATE)
    pool.stand_in.look()
    assert pool.rig.info("run-1").claimed_at == taken_at
    assert pool.held[0].renewed_at == 0.0


def test_a_database_that_is_away_is_asked_again_at_the_next_look() -> None:
    pool = Pool()
    pool.rig.advance(LATE)
    pool.runs.plan("refresh_claims", unreachable())
    with pytest.raises(StoreUnavailable):
        pool.stand_in.look()
    pool.stand_in.look()
    assert pool.held[0].renewed_at == LATE


@pytest.mark.parametrize("failure", [StoreUnavailable("away"), RuntimeError("unforeseen")])
def test_the_thread_looks_by_itself_and_survives_a_look_that_fails(failure: Exception) -> None:
    asked: list[object] = []

    class Failing:
        def refresh_claims(self, claims: object) -> set[str]:
            asked.append(claims)
            raise failure

    ledger = Ledger(bytearray(Ledger.size(1)))
    ledger.write(0, Holder(pid=1, born=0), Held("run-1", "ours", 100.0))
    stand_in = StandIn(
        Failing(),  # type: ignore[arg-type]
        ledger,
        is_at_work=lambda _: True,
        orphan_ttl=0.03,
        monotonic=lambda: 0.0,
    )
    stand_in.start()
    eventually(lambda: len(asked) >= 3)
    assert any(thread.name == "docket-stand-in" and thread.daemon for thread in threading.enumerate())
    ledger.clear(0, Held("run-1", "ours", 100.0))
