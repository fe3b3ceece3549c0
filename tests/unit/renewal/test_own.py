"""Renewal: one statement for all claims, only while the work lasts, and never more than a hint."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import pytest
from support.clock import eventually
from support.faults import FaultyStore, unreachable
from support.rig import Rig
from support.threadless import no_threads

from docket_celery import START, Graph
from docket_celery.errors import ClaimLost
from docket_celery.renewal import GRACE, Held, NoRenewal, Renewal, holding

QUICK = Graph("quick").node("a", lambda: None).edge(START, "a")


class Kept:
    """A rig with redeemed claims, and a renewal over its store whose rounds the test begins itself."""

    def __init__(self, count: int = 1) -> None:
        self.rig = Rig()
        self.runs: FaultyStore = self.rig.runs
        # Its own thread, which outlives the test, is not to wake up before the process ends.
        self.renewal = Renewal(self.rig.runs, orphan_ttl=1e7, monotonic=self.rig.clock.monotonic)
        self.held = []
        for number in range(count):
            self.rig.start(QUICK)
            lease = self.rig.lease()
            self.runs.redeem_claim(lease, token=f"ours-{number}")
            held = Held(lease.run_id, f"ours-{number}", self.rig.clock.monotonic() + 100.0)
            self.renewal.hold(held)
            self.held.append(held)

    def lock(self, *run_ids: str) -> None:
        """Somebody else has these rows locked during the next round."""
        real = self.runs._inner.refresh_claims
        remaining = [1]

        def refresh(claims: Sequence[tuple[str, str]]) -> set[str]:
            locked = remaining and remaining.pop()
            return real([claim for claim in claims if not (locked and claim[0] in run_ids)])  # type: ignore[no-any-return]

        self.runs._inner.refresh_claims = refresh


def test_all_claims_of_a_process_are_renewed_in_one_statement() -> None:
    kept = Kept(3)
    kept.rig.advance(40.0)
    assert kept.renewal.renew() is False
    assert kept.runs.count("refresh_claims") == 1
    assert {kept.rig.info(held.run_id).claimed_at for held in kept.held} == {kept.rig.clock.now()}
    assert [held.renewed_at for held in kept.held] == [40.0] * 3


def test_nothing_is_asked_while_nothing_is_held() -> None:
    kept = Kept(1)
    kept.renewal.drop(kept.held[0])
    assert kept.renewal.renew() is False
    assert kept.runs.count("refresh_claims") == 0


def test_a_claim_is_renewed_up_to_the_end_of_its_work_and_a_grace_so_that_a_hung_vehicle_expires() -> None:
    kept = Kept(1)
    kept.rig.advance(100.0 + GRACE - 0.1)
    kept.renewal.renew()
    assert kept.runs.count("refresh_claims") == 1
    kept.rig.advance(0.1)
    kept.renewal.renew()
    assert kept.runs.count("refresh_claims") == 1
    kept.held[0].until = kept.rig.clock.monotonic() + 1.0
    kept.renewal.renew()
    assert kept.runs.count("refresh_claims") == 2


def test_a_row_locked_by_somebody_else_holds_nobody_up_and_is_tried_again_soon() -> None:
    kept = Kept(2)
    kept.lock("run-1")
    kept.rig.advance(5.0)
    assert kept.renewal.renew() is True
    assert [held.lost for held in kept.held] == [False, False]
    assert kept.held[1].renewed_at == 5.0
    assert kept.runs.count("refresh_claim") == 0
    kept.rig.advance(1.0)
    assert kept.renewal.renew() is False
    assert kept.held[0].renewed_at == 6.0


def test_a_stolen_claim_is_marked_lost_after_it_was_asked_for_by_itself() -> None:
    kept = Kept(2)
    kept.rig.verbs.cancel_run("run-1")
    assert kept.renewal.renew() is True
    assert not kept.held[0].lost
    assert kept.renewal.renew() is False
    assert [held.lost for held in kept.held] == [True, False]
    kept.renewal.renew()
    assert [claims for (claims,), _ in kept.runs.of("refresh_claims")][-1] == [("run-2", "ours-1")]


def test_a_claim_that_was_only_locked_for_long_is_renewed_when_asked_for_by_itself() -> None:
    kept = Kept(1)
    kept.runs.always("refresh_claims", lambda: None)
    kept.runs._inner.refresh_claims = lambda claims: set()
    kept.renewal.renew()
    kept.rig.advance(1.0)
    assert kept.renewal.renew() is False
    assert (kept.held[0].lost, kept.held[0].renewed_at) == (False, 1.0)


def test_a_claim_that_its_vehicle_has_just_given_up_is_not_called_lost() -> None:
    kept = Kept(1)
    kept.runs.release_claim("run-1", "ours-0")
    kept.renewal.renew()
    kept.runs.plan("refresh_claim", lambda: kept.renewal.drop(kept.held[0]))
    kept.renewal.renew()
    assert not kept.held[0].lost


@pytest.mark.parametrize("method", ["refresh_claims", "refresh_claim"])
def test_a_database_that_is_away_is_asked_again_soon_and_loses_nothing(method: str) -> None:
    kept = Kept(1)
    if method == "refresh_claim":
        kept.runs._inner.refresh_claims = lambda claims: set()
        kept.renewal.renew()
    kept.runs.always(method, unreachable)
    assert kept.renewal.renew() is True
    assert not kept.held[0].lost


def test_a_run_redeemed_again_in_the_same_process_loses_its_earlier_claim_at_once() -> None:
    kept = Kept(1)
    kept.rig.expire()
    lease = kept.rig.lease()
    kept.runs.redeem_claim(lease, token="newer")
    newer = Held(lease.run_id, "newer", kept.rig.clock.monotonic() + 100.0)
    kept.renewal.hold(newer)
    assert (kept.held[0].lost, newer.lost) == (True, False)


def test_a_claim_is_held_for_the_length_of_a_block_whatever_happens_in_it() -> None:
    kept = Kept(0)
    held = Held("run-1", "ours", 100.0)
    with pytest.raises(ZeroDivisionError), holding(kept.renewal, held):
        raise ZeroDivisionError
    kept.renewal.renew()
    assert kept.runs.count("refresh_claims") == 0


def test_without_renewal_nothing_is_asked() -> None:
    with holding(NoRenewal(), Held("run-1", "ours", 1.0)):
        pass


class Beating:
    """A store that counts rounds; the first one fails in a way that nobody foresaw."""

    def __init__(self) -> None:
        self.rounds = 0

    def refresh_claims(self, claims: Sequence[tuple[str, str]]) -> set[str]:
        self.rounds += 1
        if self.rounds == 1:
            raise RuntimeError("a bug")
        return {run_id for run_id, _ in claims}

    def refresh_claim(self, run_id: str, token: str) -> None:
        raise ClaimLost(run_id)


def test_the_thread_beats_by_itself_and_survives_a_failing_round() -> None:
    store = Beating()
    renewal = Renewal(store, orphan_ttl=0.03, monotonic=lambda: 0.0)  # type: ignore[arg-type]
    held = Held("run-1", "ours", 1.0)
    with holding(renewal, held):
        eventually(lambda: store.rounds >= 3)
    assert held.renewed_at == 0.0
    assert any(thread.name == "docket-renewal" and thread.daemon for thread in threading.enumerate())


class Shown:
    """A witness that only remembers."""

    def __init__(self) -> None:
        self.now: list[str] = []

    def show(self, held: Held) -> None:
        self.now.append(held.token)

    def hide(self, held: Held) -> None:
        self.now.remove(held.token)


def test_a_witness_is_shown_each_claim_for_as_long_as_it_is_held() -> None:
    shown = Shown()
    renewal = Renewal(Beating(), orphan_ttl=600.0, monotonic=lambda: 0.0, witness=shown)  # type: ignore[arg-type]
    with holding(renewal, Held("run-1", "ours", 100.0)):
        assert shown.now == ["ours"]
    assert shown.now == []


def test_a_process_that_once_had_no_thread_left_renews_as_soon_as_it_has_one() -> None:
    rig = Rig()
    renewal = Renewal(rig.runs, orphan_ttl=0.03, monotonic=time.monotonic)
    rig.start(QUICK)
    lease = rig.lease()
    rig.runs.redeem_claim(lease, token="ours")
    with no_threads():
        renewal.hold(Held(lease.run_id, "ours", time.monotonic() + 100.0))
    assert rig.runs.count("refresh_claims") == 0
    renewal.hold(Held("run-2", "other", time.monotonic() + 100.0))
    assert eventually(lambda: rig.runs.count("refresh_claims") > 0)
