"""Claiming due runs: who is a candidate, what each becomes, and in which order they are served."""

from __future__ import annotations

from datetime import timedelta

import pytest
from support.builders import ORDER, TTL, a_scan
from support.scene import Scene

from docket_celery.errors import InvalidInput
from docket_celery.run.document import RunStatus
from docket_celery.storage.contracts.claims import ClaimBatch, PoisonedClaim
from docket_celery.storage.contracts.values import Release

MICROSECOND = timedelta(microseconds=1)


def _ids(batch: ClaimBatch) -> list[str]:
    return [lease.run_id for lease in batch.leases]


# -- candidates -------------------------------------------------------------------------------------------------------


def test_a_wake_at_this_very_instant_is_due(scene: Scene) -> None:
    scene.start()
    assert _ids(scene.scan()) == ["run-1"]


def test_a_wake_one_microsecond_ahead_is_not_due(scene: Scene) -> None:
    scene.start(schedule=Release(kind="at", at=scene.now + MICROSECOND))
    assert _ids(scene.scan()) == []
    scene.clock.advance(MICROSECOND)
    assert _ids(scene.scan()) == ["run-1"]


def test_a_claim_exactly_as_old_as_the_ttl_still_holds(scene: Scene) -> None:
    scene.start()
    scene.hold()
    scene.clock.advance(TTL)
    assert _ids(scene.scan()) == []
    scene.clock.advance(MICROSECOND)
    assert _ids(scene.scan()) == ["run-1"]


@pytest.mark.parametrize("status", [RunStatus.WAITING, RunStatus.DONE, RunStatus.FAILED, RunStatus.CANCELLED])
def test_a_run_that_is_not_running_is_never_claimed(scene: Scene, status: RunStatus) -> None:
    scene.start(status=status)
    scene.clock.advance(TTL * 10)
    assert _ids(scene.scan()) == []


def test_a_poisoned_run_is_never_claimed(scene: Scene) -> None:
    scene.start()
    scene.poison()
    scene.clock.advance(TTL * 10)
    assert scene.scan() == ClaimBatch(leases=(), poisoned=(), now=scene.now)


def test_a_claimed_run_is_not_claimed_again(scene: Scene) -> None:
    scene.start()
    scene.lease()
    assert _ids(scene.scan()) == []


def test_expiry_is_judged_by_the_claimers_ttl(scene: Scene) -> None:
    scene.start()
    scene.hold()
    scene.clock.advance(2)
    assert _ids(scene.scan()) == []
    assert _ids(scene.scan(orphan_ttl=timedelta(seconds=1))) == ["run-1"]


def test_a_pinned_now_decides_in_place_of_the_clock(scene: Scene) -> None:
    scene.start(schedule=Release(kind="at", at=scene.now + TTL))
    pinned = scene.now + TTL
    batch = scene.scan(now=pinned)
    assert _ids(batch) == ["run-1"]
    assert batch.now == pinned
    assert scene.info().claimed_at == pinned


# -- outcomes ---------------------------------------------------------------------------------------------------------


def test_a_lease_carries_what_its_holder_needs(scene: Scene) -> None:
    scene.start(tenant="acme")
    lease = scene.lease()
    assert (lease.run_id, lease.tenant, lease.checkpoint_seq) == ("run-1", "acme", 1)
    assert (lease.graph_id, lease.graph_hash) == (ORDER.graph_id, ORDER.graph_hash)
    assert (lease.claimed_at, lease.orphan_ttl) == (scene.now, TTL)
    assert lease.claim_token


def test_a_claim_replaces_the_wake(scene: Scene) -> None:
    scene.start()
    scene.clock.advance(3)
    scene.lease()
    assert (scene.info().wake_at, scene.info().claimed_at) == (None, scene.now)


def test_each_lease_has_a_token_of_its_own(scene: Scene) -> None:
    for number in range(5):
        scene.start(f"run-{number}")
    assert len({lease.claim_token for lease in scene.scan().leases}) == 5


def test_a_lease_counts_nothing_and_says_the_attempt_it_will_be(scene: Scene) -> None:
    scene.start()
    lease = scene.lease()
    assert lease.claim_attempt == 1
    assert (scene.info().claim_attempts, scene.info().claim_redeemed) == (0, False)


def test_a_direct_claim_counts_at_once_and_needs_no_redemption(scene: Scene) -> None:
    scene.start()
    lease = scene.lease(delivery="direct")
    assert lease.claim_attempt == 1
    assert (scene.info().claim_attempts, scene.info().claim_redeemed) == (1, True)


def test_an_expired_claim_is_stolen_under_a_fresh_token(scene: Scene) -> None:
    scene.start()
    token = scene.hold()
    scene.expire()
    batch = scene.scan()
    (lease,) = batch.leases
    assert lease.claim_token != token
    assert lease.claim_attempt == 2
    assert (batch.stolen, batch.reissued) == (1, 0)
    assert (scene.info().claimed_at, scene.info().claim_redeemed) == (scene.now, False)


def test_an_unredeemed_claim_that_expired_is_leased_again_under_its_token_and_never_counted(scene: Scene) -> None:
    scene.start()
    first = scene.lease()
    for times in range(1, 6):
        scene.expire()
        batch = scene.scan()
        (again,) = batch.leases
        assert again.claim_token == first.claim_token
        assert (again.claim_attempt, again.claimed_at) == (1, scene.now)
        assert (batch.stolen, batch.reissued) == (0, 1)
        assert (scene.info().claim_attempts, scene.info().undelivered) == (0, times)


def test_an_unredeemed_claim_waits_a_whole_ttl_each_time(scene: Scene) -> None:
    scene.start()
    scene.lease()
    scene.expire()
    scene.lease()
    scene.clock.advance(TTL)
    assert _ids(scene.scan()) == []


def test_a_direct_claim_of_an_unredeemed_lease_rotates_its_token(scene: Scene) -> None:
    scene.start()
    lease = scene.lease()
    scene.expire()
    direct = scene.lease(delivery="direct")
    assert direct.claim_token != lease.claim_token
    assert scene.info().claim_attempts == 1


def test_a_direct_steal_rotates_the_token_and_counts(scene: Scene) -> None:
    scene.start()
    first = scene.lease(delivery="direct")
    scene.expire()
    second = scene.lease(delivery="direct")
    assert second.claim_token != first.claim_token
    assert second.claim_attempt == 2


def test_a_maximum_of_three_permits_three_launches_and_the_fourth_need_poisons(scene: Scene) -> None:
    scene.start()
    for attempt in (1, 2, 3):
        lease = scene.lease()
        assert lease.claim_attempt == attempt
        scene.redeem(lease)
        scene.expire()
    batch = scene.scan()
    assert batch.leases == ()
    assert batch.poisoned == (
        PoisonedClaim(run_id="run-1", poisoned_at=scene.now, poison_reason="max_claim_attempts_exceeded"),
    )
    info = scene.info()
    assert (info.wake_at, info.claimed_at, info.claim_redeemed, info.claim_attempts) == (None, None, False, 3)
    assert (info.poisoned_at, info.poison_reason) == (scene.now, "max_claim_attempts_exceeded")


def test_direct_claims_poison_on_the_fourth_need_too(scene: Scene) -> None:
    scene.start()
    for _ in range(3):
        scene.lease(delivery="direct")
        scene.expire()
    assert [halted.run_id for halted in scene.scan(delivery="direct").poisoned] == ["run-1"]


def test_a_released_run_that_has_used_up_its_attempts_is_poisoned_too(scene: Scene) -> None:
    scene.start()
    for _ in range(3):
        scene.runs.release_claim("run-1", scene.hold())
    assert [halted.run_id for halted in scene.scan().poisoned] == ["run-1"]


def test_an_expired_claim_that_nobody_redeemed_is_never_poisoned(scene: Scene) -> None:
    scene.start()
    scene.runs.release_claim("run-1", scene.hold())
    scene.lease()
    scene.expire()
    batch = scene.scan(max_claim_attempts=1)
    assert (_ids(batch), batch.poisoned) == (["run-1"], ())


def test_poison_changes_neither_document_nor_sequence(scene: Scene) -> None:
    before = scene.start(fields={"n": 1}).run
    scene.poison()
    assert scene.run() == before


def test_a_poisoned_outcome_counts_against_the_limit(scene: Scene) -> None:
    scene.start("run-1")
    for _ in range(3):
        scene.hold()
        scene.expire()
    scene.start("run-2")
    batch = scene.scan(limit=1)
    assert ([halted.run_id for halted in batch.poisoned], batch.leases) == (["run-1"], ())


# -- order ------------------------------------------------------------------------------------------------------------


def _ready_and_expired(scene: Scene, ready: int, expired: int) -> None:
    """Expired runs `x..` eligible since before the ready runs `r..`, each class in its order of age."""
    for number in range(expired):
        scene.start(f"x{number}")
    for lease in scene.scan().leases:
        scene.redeem(lease)
    scene.expire()
    for number in range(ready):
        scene.clock.advance(1)
        scene.start(f"r{number}")


def test_the_longest_eligible_is_served_first_and_ids_break_ties(scene: Scene) -> None:
    for run_id, seconds in (("b", 2), ("d", 1), ("a", 2), ("c", 3)):
        scene.start(run_id, schedule=Release(kind="at", at=scene.now + timedelta(seconds=seconds)))
    scene.clock.advance(10)
    assert [scene.lease(limit=1).run_id for _ in range(4)] == ["d", "a", "b", "c"]


def test_a_batch_takes_the_longest_eligible(scene: Scene) -> None:
    for run_id, seconds in (("b", 2), ("d", 1), ("a", 2), ("c", 3)):
        scene.start(run_id, schedule=Release(kind="at", at=scene.now + timedelta(seconds=seconds)))
    scene.clock.advance(10)
    assert sorted(_ids(scene.scan(limit=2))) == ["a", "d"]


def test_claims_expire_in_the_order_of_their_age_whatever_their_ids(scene: Scene) -> None:
    ages = {3: 9, 5: 8, 6: 7, 10: 6} | {1: 5, 2: 4, 4: 3, 7: 2, 8: 1, 9: 0}
    for number in range(1, 11):
        scene.start(f"run-{number:02}", schedule=Release(kind="at", at=scene.now - timedelta(seconds=ages[number])))
    for _ in ages:
        scene.hold(limit=1)
        scene.clock.advance(1)
    scene.clock.advance(TTL - timedelta(seconds=6.5))
    assert sorted(_ids(scene.scan(limit=2))) == ["run-03", "run-05"]
    assert sorted(_ids(scene.scan(limit=2))) == ["run-06", "run-10"]
    assert _ids(scene.scan(limit=10)) == []


def test_a_run_of_old_id_and_old_start_that_was_claimed_just_now_is_not_stolen(scene: Scene) -> None:
    scene.start("run-0")
    for _ in range(5):
        scene.runs.release_claim("run-0", scene.hold(), uncounted=True)
        scene.clock.advance(TTL)
    scene.hold()
    scene.start("run-1")
    assert _ids(scene.scan()) == ["run-1"]


def test_an_expired_run_is_eligible_since_its_claim_ran_out(scene: Scene) -> None:
    scene.start("x")
    scene.hold()
    expires_at = scene.now + TTL
    scene.start("r-before", schedule=Release(kind="at", at=expires_at - timedelta(seconds=1)))
    scene.start("r-after", schedule=Release(kind="at", at=expires_at + timedelta(seconds=1)))
    scene.clock.advance(TTL + timedelta(seconds=5))
    assert [scene.lease(limit=1).run_id for _ in range(3)] == ["r-before", "x", "r-after"]


def test_at_a_demand_of_two_each_class_gets_a_place_however_old_the_other_is(scene: Scene) -> None:
    _ready_and_expired(scene, ready=3, expired=3)
    assert sorted(_ids(scene.scan(limit=2))) == ["r0", "x0"]


def test_the_rest_of_a_batch_follows_age(scene: Scene) -> None:
    _ready_and_expired(scene, ready=3, expired=3)
    assert sorted(_ids(scene.scan(limit=4))) == ["r0", "x0", "x1", "x2"]


def test_the_younger_class_keeps_its_place_when_expired_runs_are_the_younger(scene: Scene) -> None:
    for number in range(3):
        scene.start(f"x{number}")
    for lease in scene.scan().leases:
        scene.redeem(lease)
    for number in range(3):
        scene.start(f"r{number}")
    scene.expire()
    assert sorted(_ids(scene.scan(limit=2))) == ["r0", "x0"]
    assert sorted(_ids(scene.scan(limit=3))) == ["r1", "r2", "x1"]


def test_a_poisoned_outcome_fills_the_place_of_its_class(scene: Scene) -> None:
    scene.start("x")
    for _ in range(3):
        scene.hold()
        scene.expire()
    for number in range(3):
        scene.start(f"r{number}", schedule=Release(kind="at", at=scene.now - TTL * 2))
    batch = scene.scan(limit=2)
    assert _ids(batch) == ["r0"]
    assert [halted.run_id for halted in batch.poisoned] == ["x"]


def test_with_one_class_empty_the_other_takes_the_whole_batch(scene: Scene) -> None:
    _ready_and_expired(scene, ready=3, expired=0)
    assert sorted(_ids(scene.scan(limit=2))) == ["r0", "r1"]


def test_at_a_demand_of_one_the_preferred_class_is_served(scene: Scene) -> None:
    _ready_and_expired(scene, ready=2, expired=2)
    assert _ids(scene.scan(limit=1, preference="ready")) == ["r0"]
    assert _ids(scene.scan(limit=1, preference="expired")) == ["x0"]


def test_at_a_demand_of_one_without_preference_age_decides(scene: Scene) -> None:
    _ready_and_expired(scene, ready=2, expired=2)
    assert _ids(scene.scan(limit=1)) == ["x0"]


def test_a_preferred_class_that_is_empty_falls_through(scene: Scene) -> None:
    scene.start("r0")
    assert _ids(scene.scan(limit=1, preference="expired")) == ["r0"]
    scene.expire()
    assert _ids(scene.scan(limit=1, preference="ready")) == ["r0"]


def test_a_preference_means_nothing_to_a_larger_demand(scene: Scene) -> None:
    _ready_and_expired(scene, ready=2, expired=2)
    assert sorted(_ids(scene.scan(limit=3, preference="ready"))) == ["r0", "x0", "x1"]


def test_no_more_than_the_limit_is_handed_out(scene: Scene) -> None:
    _ready_and_expired(scene, ready=5, expired=5)
    assert len(scene.scan(limit=4).leases) == 4


@pytest.mark.parametrize(
    "parts", [{"limit": 0}, {"max_claim_attempts": 0}, {"orphan_ttl": timedelta(seconds=-1)}], ids=str
)
def test_a_policy_out_of_bounds_is_refused(parts: dict[str, int]) -> None:
    with pytest.raises(InvalidInput):
        a_scan(**parts)


def test_a_scan_tells_the_earliest_wake_to_come_within_the_hour(scene: Scene) -> None:
    assert scene.scan().next_wake_at is None
    for number, minutes in enumerate((61, 30, 20)):
        scene.start(f"run-{number}", schedule=Release(kind="at", at=scene.clock.now() + timedelta(minutes=minutes)))
    assert scene.scan().next_wake_at == scene.clock.now() + timedelta(minutes=20)
    scene.clock.advance(timedelta(minutes=20))
    batch = scene.scan(limit=1)
    assert [lease.run_id for lease in batch.leases] == ["run-2"]
    assert batch.next_wake_at == scene.clock.now() + timedelta(minutes=10)
