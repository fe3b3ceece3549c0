"""Giving a claim back: exact token, idempotent, and never to the cost of whoever holds the claim now."""

from __future__ import annotations

from datetime import timedelta

import pytest
from support.scene import RETAIN, Scene


def test_a_release_clears_the_claim_and_wakes_at_once(scene: Scene) -> None:
    scene.start()
    token = scene.hold()
    later = scene.clock.advance(5)
    scene.runs.release_claim("run-1", token)
    info = scene.info()
    assert (info.claimed_at, info.claim_redeemed, info.wake_at) == (None, False, later)
    assert scene.lease().run_id == "run-1"


def test_a_plain_release_keeps_the_attempt_counted(scene: Scene) -> None:
    scene.start()
    scene.runs.release_claim("run-1", scene.hold())
    assert scene.info().claim_attempts == 1


def test_an_uncounted_release_takes_the_attempt_back(scene: Scene) -> None:
    scene.start()
    for _ in range(8):
        scene.runs.release_claim("run-1", scene.hold(), uncounted=True)
    assert scene.info().claim_attempts == 0


def test_an_uncounted_release_of_a_direct_claim_takes_the_attempt_back(scene: Scene) -> None:
    scene.start()
    lease = scene.lease(delivery="direct")
    scene.runs.release_claim("run-1", lease.claim_token, uncounted=True)
    assert scene.info().claim_attempts == 0


def test_an_uncounted_release_of_an_unredeemed_lease_has_nothing_to_take_back(scene: Scene) -> None:
    scene.start()
    scene.runs.release_claim("run-1", scene.hold())
    scene.runs.release_claim("run-1", scene.lease().claim_token, uncounted=True)
    assert scene.info().claim_attempts == 1


def test_a_count_that_a_commit_has_reset_stays_at_zero(scene: Scene) -> None:
    scene.start()
    token = scene.hold()
    scene.commit("run-1", token, schedule=RETAIN)
    scene.runs.release_claim("run-1", token, uncounted=True)
    assert scene.info().claim_attempts == 0


@pytest.mark.parametrize("uncounted", [False, True])
def test_a_delay_moves_the_wake(scene: Scene, uncounted: bool) -> None:
    scene.start()
    scene.runs.release_claim("run-1", scene.hold(), uncounted=uncounted, delay=timedelta(seconds=12.5))
    assert scene.info().wake_at == scene.now + timedelta(seconds=12.5)
    assert scene.scan().leases == ()


def test_an_endless_delay_saturates(scene: Scene) -> None:
    scene.start()
    scene.runs.release_claim("run-1", scene.hold(), delay=timedelta.max)
    wake_at = scene.info().wake_at
    assert wake_at is not None
    assert wake_at > scene.now + timedelta(days=3_650)


def test_a_release_touches_neither_document_nor_sequence(scene: Scene) -> None:
    before = scene.start(fields={"n": 1}).run
    token = scene.hold()
    scene.clock.advance(5)
    scene.runs.release_claim("run-1", token)
    assert scene.run() == before


def test_a_second_release_changes_nothing(scene: Scene) -> None:
    scene.start()
    token = scene.hold()
    scene.runs.release_claim("run-1", token)
    scene.clock.advance(5)
    before = scene.info()
    scene.runs.release_claim("run-1", token, uncounted=True, delay=timedelta(hours=1))
    assert scene.info().wake_at == before.wake_at
    assert scene.info().claim_attempts == before.claim_attempts


def test_a_losers_release_never_disturbs_the_winner(scene: Scene) -> None:
    scene.start()
    lease = scene.lease()
    loser = scene.redeem(lease)
    scene.expire()
    winner = scene.hold()
    before = scene.info()
    for token in (lease.claim_token, loser):
        scene.runs.release_claim("run-1", token)
        scene.runs.release_claim("run-1", token, uncounted=True)
    assert scene.info() == before
    scene.commit("run-1", winner)


def test_a_losers_release_never_disturbs_a_schedule(scene: Scene) -> None:
    scene.start()
    token = scene.hold()
    scene.mutate("run-1")
    before = scene.info()
    scene.runs.release_claim("run-1", token, delay=timedelta(hours=1))
    assert scene.info() == before


def test_releasing_an_unknown_run_is_nothing(scene: Scene) -> None:
    scene.runs.release_claim("run-absent", "token")


def test_several_unredeemed_leases_are_released_at_once(scene: Scene) -> None:
    for number in range(3):
        scene.start(f"run-{number}")
    leases = scene.scan().leases
    later = scene.clock.advance(1)
    assert scene.runs.release_claims([(lease.run_id, lease.claim_token) for lease in leases]) == 3
    for lease in leases:
        info = scene.info(lease.run_id)
        assert (info.claimed_at, info.wake_at, info.claim_attempts, info.undelivered) == (None, later, 0, 0)


def test_a_batch_release_passes_over_what_is_redeemed_stolen_or_unknown(scene: Scene) -> None:
    for number in range(3):
        scene.start(f"run-{number}")
    leases = {lease.run_id: lease for lease in scene.scan().leases}
    private = scene.redeem(leases["run-0"])
    scene.runs.release_claim("run-1", leases["run-1"].claim_token)
    scene.lease()
    before = [scene.info(f"run-{number}") for number in (0, 1)]
    claims = [(lease.run_id, lease.claim_token) for lease in leases.values()]
    assert scene.runs.release_claims([*claims, ("run-0", private), ("run-absent", "none")]) == 1
    assert [scene.info(f"run-{number}") for number in (0, 1)] == before
    assert scene.info("run-2").claimed_at is None


def test_an_empty_batch_releases_nothing(scene: Scene) -> None:
    assert scene.runs.release_claims([]) == 0
