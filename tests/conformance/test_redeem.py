"""Redeeming: a lease is a ticket that is used once, and its token never works again."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from support.builders import TTL, a_commit
from support.scene import Scene

from docket_celery.errors import StaleFence
from docket_celery.run.document import RunStatus
from docket_celery.storage.contracts.claims import Lease
from docket_celery.storage.contracts.values import SYSTEM


def _refused(scene: Scene, lease: Lease, token: str = "late") -> None:
    before = scene.info(lease.run_id)
    with pytest.raises(StaleFence):
        scene.runs.redeem_claim(lease, token=token)
    assert scene.info(lease.run_id) == before


def test_redeeming_returns_the_run_and_installs_the_chosen_token(scene: Scene) -> None:
    scene.start(fields={"n": 1})
    lease = scene.lease()
    later = scene.clock.advance(5)
    redeemed = scene.runs.redeem_claim(lease, token="mine")
    assert redeemed.run == scene.run()
    assert (redeemed.claim_token, redeemed.claimed_at, redeemed.now) == ("mine", lease.claimed_at, later)
    assert (redeemed.claim_attempt, redeemed.inbox_seq) == (1, 0)


def test_redeeming_moves_the_claim_time_once_a_third_of_the_ttl_has_passed(scene: Scene) -> None:
    scene.start("run-1")
    scene.start("run-2")
    in_time, late = scene.scan(limit=2).leases
    scene.clock.advance(TTL / 3)
    assert scene.runs.redeem_claim(in_time, token="mine").claimed_at == in_time.claimed_at
    assert scene.info(in_time.run_id).claimed_at == in_time.claimed_at
    later = scene.clock.advance(0.001)
    assert scene.runs.redeem_claim(late, token="mine").claimed_at == later
    assert scene.info(late.run_id).claimed_at == later


def test_the_first_redemption_counts_the_attempt(scene: Scene) -> None:
    scene.start()
    lease = scene.lease()
    scene.redeem(lease)
    assert (scene.info().claim_attempts, scene.info().claim_redeemed) == (1, True)
    assert lease.claim_attempt == 1


def test_the_private_token_is_the_one_that_commits(scene: Scene) -> None:
    scene.start()
    lease = scene.lease()
    token = scene.redeem(lease)
    with pytest.raises(StaleFence):
        scene.runs.commit(SYSTEM, a_commit(scene.run(), lease.claim_token, at=scene.now))
    scene.commit("run-1", token)


def test_a_doubled_message_finds_nothing_to_redeem(scene: Scene) -> None:
    scene.start()
    lease = scene.lease()
    scene.redeem(lease, "first")
    _refused(scene, lease, "second")


def test_a_lost_reply_can_be_asked_again_with_the_same_token_and_counts_once(scene: Scene) -> None:
    scene.start()
    lease = scene.lease()
    first = scene.runs.redeem_claim(lease, token="mine")
    again = scene.runs.redeem_claim(lease, token="mine")
    assert again == first
    assert scene.info().claim_attempts == 1


def test_a_late_message_still_redeems_a_lease_that_was_issued_again(scene: Scene) -> None:
    scene.start()
    early = scene.lease()
    scene.expire()
    scene.lease()
    scene.redeem(early)
    assert scene.info().claim_attempts == 1


def test_of_a_lease_issued_twice_one_message_wins(scene: Scene) -> None:
    scene.start()
    early = scene.lease()
    scene.expire()
    late = scene.lease()
    scene.redeem(late, "winner")
    _refused(scene, early, "loser")


def test_an_expired_lease_that_nobody_took_over_can_still_be_redeemed(scene: Scene) -> None:
    scene.start()
    lease = scene.lease()
    scene.expire()
    scene.redeem(lease)
    assert scene.info().claimed_at == scene.now


def test_a_lease_that_was_stolen_directly_cannot_be_redeemed(scene: Scene) -> None:
    scene.start()
    lease = scene.lease()
    scene.expire()
    scene.lease(delivery="direct")
    _refused(scene, lease)


def test_a_redeemed_claim_that_was_stolen_cannot_be_redeemed_again(scene: Scene) -> None:
    scene.start()
    lease = scene.lease()
    scene.redeem(lease, "mine")
    scene.expire()
    scene.lease()
    _refused(scene, lease, "mine")


def test_a_released_lease_cannot_be_redeemed(scene: Scene) -> None:
    scene.start()
    lease = scene.lease()
    scene.runs.release_claim("run-1", lease.claim_token)
    _refused(scene, lease)


def test_a_lease_of_an_earlier_sequence_cannot_be_redeemed(scene: Scene) -> None:
    scene.start()
    lease = scene.lease()
    scene.mutate("run-1")
    _refused(scene, lease)


def test_the_right_token_with_another_sequence_is_stale(scene: Scene) -> None:
    scene.start()
    lease = scene.lease()
    _refused(scene, replace(lease, checkpoint_seq=2))
    scene.redeem(lease)


@pytest.mark.parametrize("status", [RunStatus.WAITING, RunStatus.CANCELLED])
def test_a_run_that_stopped_meanwhile_cannot_be_redeemed(scene: Scene, status: RunStatus) -> None:
    scene.start()
    lease = scene.lease()
    scene.mutate("run-1", status=status)
    _refused(scene, lease)


def test_a_poisoned_run_cannot_be_redeemed(scene: Scene) -> None:
    scene.start()
    lease = scene.lease()
    assert scene.abandon("run-1", lease.claim_token, max_claim_abandons=0) == "poisoned"
    _refused(scene, lease)


def test_an_unknown_run_is_stale_too(scene: Scene) -> None:
    scene.start()
    lease = replace(scene.lease(), run_id="run-absent")
    with pytest.raises(StaleFence):
        scene.runs.redeem_claim(lease, token="mine")


def test_a_direct_claim_may_be_redeemed_and_is_not_counted_again(scene: Scene) -> None:
    scene.start()
    lease = scene.lease(delivery="direct")
    redeemed = scene.runs.redeem_claim(lease, token="mine")
    assert redeemed.claim_attempt == 1
    assert scene.info().claim_attempts == 1
    _refused(scene, lease, "second")


def test_the_run_of_a_redemption_is_the_callers_own(scene: Scene) -> None:
    scene.start(fields={"log": ["a"]})
    scene.runs.redeem_claim(scene.lease(), token="mine").run.fields["log"].append("b")
    assert scene.run().fields == {"log": ["a"]}
