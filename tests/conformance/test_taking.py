"""Taking: a free slot claims a due run and redeems it at once, under a token that nobody else ever had."""

from __future__ import annotations

from datetime import timedelta

import pytest
from support.builders import TTL, a_commit, a_scan
from support.scene import RETAIN, Scene

from docket_celery.errors import StaleFence
from docket_celery.run.document import RunStatus
from docket_celery.storage.contracts.claims import Demand, Redeemed
from docket_celery.storage.contracts.taking import Taken, TakeRequest
from docket_celery.storage.contracts.values import SYSTEM, CommitProposal, Release


def _take(scene: Scene, token: str = "mine", **parts: object) -> Taken:
    return scene.runs.take_due(a_scan(**{"limit": 1, **parts}), token=token)


def _taken(scene: Scene, token: str = "mine", **parts: object) -> Redeemed:
    claim = _take(scene, token, **parts).claim
    assert isinstance(claim, Redeemed)
    return claim


def test_a_taken_run_is_claimed_counted_and_whole(scene: Scene) -> None:
    scene.start(fields={"n": 1}, tenant="acme")
    later = scene.clock.advance(5)
    taken = _take(scene)
    (lease,) = taken.batch.leases
    assert (lease.run_id, lease.tenant, lease.claim_token) == ("run-1", "acme", "mine")
    assert (lease.claimed_at, lease.claim_attempt, lease.orphan_ttl) == (later, 1, TTL)
    assert isinstance(taken.claim, Redeemed)
    assert taken.claim.run == scene.run()
    assert (taken.claim.claim_token, taken.claim.claim_attempt, taken.claim.now) == ("mine", 1, later)
    info = scene.info()
    assert (info.claim_redeemed, info.claim_attempts, info.claimed_at, info.wake_at) == (True, 1, later, None)


def test_the_token_it_was_taken_under_commits(scene: Scene) -> None:
    scene.start()
    _taken(scene)
    assert scene.commit("run-1", "mine").checkpoint_seq == 2


@pytest.mark.parametrize("preference", [None, "ready", "expired"])
def test_nothing_due_is_nothing_taken(scene: Scene, preference: str | None) -> None:
    scene.start(schedule=Release(kind="at", at=scene.now + timedelta(seconds=1)))
    taken = _take(scene, preference=preference)
    assert (taken.claim, taken.batch.leases, taken.batch.poisoned) == (None, (), ())


def test_the_longest_ready_run_is_taken_first(scene: Scene) -> None:
    for number in (2, 1, 3):
        scene.start(f"run-{number}")
        scene.clock.advance(1)
    assert [_taken(scene, f"token-{n}").run.id for n in range(3)] == ["run-2", "run-1", "run-3"]


@pytest.mark.parametrize(("preference", "first"), [(None, "old"), ("expired", "old"), ("ready", "young")])
def test_an_expired_claim_has_its_turn(scene: Scene, preference: str | None, first: str) -> None:
    scene.start("old")
    scene.hold()
    scene.expire()
    scene.clock.advance(1)
    scene.start("young")
    taken = _take(scene, preference=preference)
    assert [lease.run_id for lease in taken.batch.leases] == [first]
    assert taken.batch.stolen == (first == "old")


def test_a_lease_that_expired_unredeemed_is_taken_without_a_count(scene: Scene) -> None:
    scene.start()
    lease = scene.lease()
    scene.expire()
    claim = _taken(scene)
    assert (claim.claim_attempt, scene.info().undelivered) == (1, 1)
    assert lease.claim_token != "mine"


def test_a_run_whose_attempts_are_used_up_is_poisoned_and_not_taken(scene: Scene) -> None:
    scene.start()
    for number in range(3):
        _taken(scene, f"token-{number}")
        scene.runs.release_claim("run-1", f"token-{number}")
    taken = _take(scene)
    assert taken.claim is None
    assert [halted.run_id for halted in taken.batch.poisoned] == ["run-1"]


def test_no_run_is_taken_while_every_slot_has_one(scene: Scene) -> None:
    scene.start("run-1")
    scene.start("run-2")
    demand = Demand(gate="refill", slots=1)
    assert _taken(scene, demand=demand).run.id == "run-1"
    assert _take(scene, "other", demand=demand).claim is None
    scene.runs.release_claim("run-1", "mine", delay=timedelta(hours=1))
    assert _taken(scene, "other", demand=demand).run.id == "run-2"


def test_expired_claims_take_up_no_slot(scene: Scene) -> None:
    scene.start("run-1")
    scene.start("run-2")
    demand = Demand(gate="refill", slots=1)
    _taken(scene, demand=demand)
    scene.clock.advance(TTL)
    assert _take(scene, "other", demand=demand).claim is None
    scene.expire()
    assert _taken(scene, "other", demand=demand, preference="ready").run.id == "run-2"


def test_slots_that_workers_registered_count_where_no_number_is_given(scene: Scene) -> None:
    for number in range(4):
        scene.start(f"run-{number}")
    scene.storage.fleet.register_worker("w", 3, ttl=timedelta(minutes=1), orphan_ttl=TTL)
    taken = [_take(scene, f"token-{n}", demand=Demand(gate="refill")).claim for n in range(4)]
    assert [claim is not None for claim in taken] == [True, True, True, False]


def test_tenants_have_their_turns(scene: Scene) -> None:
    for number, tenant in enumerate(["a", "a", "b"]):
        scene.start(f"run-{number}", tenant=tenant)
    first = _taken(scene, "one", order="tenants", tenant_cap=1).run.id
    second = _taken(scene, "two", order="tenants", tenant_cap=1).run.id
    assert {first, second} == {"run-0", "run-2"}
    assert _take(scene, "three", order="tenants", tenant_cap=1).claim is None


def _alone(scene: Scene, **parts: object) -> Taken | None:
    return scene.runs.take_alone(a_scan(**{"limit": 1, **parts}), token="mine")


@pytest.mark.parametrize("demand", [None, Demand(gate="refill", slots=1), Demand(gate="refill")])
def test_the_one_run_that_is_due_is_taken_alone_with_the_next_wake(scene: Scene, demand: Demand | None) -> None:
    scene.start(fields={"n": 1}, tenant="acme")
    later = scene.clock.advance(5)
    wake = later + timedelta(seconds=30)
    scene.start("run-2", schedule=Release(kind="at", at=wake))
    taken = _alone(scene, demand=demand)
    assert taken is not None
    assert isinstance(taken.claim, Redeemed)
    (lease,) = taken.batch.leases
    assert (lease.run_id, lease.tenant, lease.claim_token, lease.claim_attempt) == ("run-1", "acme", "mine", 1)
    assert (taken.claim.run, taken.claim.claimed_at, taken.claim.now) == (scene.run(), later, later)
    assert (taken.batch.next_wake_at, taken.batch.stolen, taken.batch.reissued) == (wake, 0, 0)
    info = scene.info()
    assert (info.claim_redeemed, info.claim_attempts, info.claimed_at, info.wake_at) == (True, 1, later, None)
    assert scene.commit("run-1", "mine").checkpoint_seq == 2


def test_a_run_is_not_taken_alone_while_a_second_one_is_due(scene: Scene) -> None:
    scene.start("run-1")
    scene.start("run-2")
    assert _alone(scene) is None
    assert len(scene.scan().leases) == 2


@pytest.mark.parametrize("redeemed", [True, False])
def test_a_run_is_not_taken_alone_beside_an_expired_claim(scene: Scene, redeemed: bool) -> None:
    scene.start("run-1")
    scene.hold() if redeemed else scene.lease()
    scene.expire()
    scene.start("run-2")
    assert _alone(scene) is None
    assert len(scene.scan().leases) == 2


def test_an_expired_claim_is_not_taken_alone(scene: Scene) -> None:
    scene.start()
    scene.hold()
    scene.expire()
    assert _alone(scene) is None


def test_nothing_due_is_nothing_taken_alone(scene: Scene) -> None:
    scene.start(schedule=Release(kind="at", at=scene.now + timedelta(seconds=1)))
    assert _alone(scene) is None


def test_a_run_whose_attempts_are_used_up_is_not_taken_alone(scene: Scene) -> None:
    scene.start()
    for number in range(3):
        _taken(scene, f"token-{number}")
        scene.runs.release_claim("run-1", f"token-{number}")
    assert _alone(scene) is None
    assert [halted.run_id for halted in scene.scan().poisoned] == ["run-1"]


def test_no_run_is_taken_alone_while_every_slot_has_one(scene: Scene) -> None:
    scene.start("run-1")
    scene.hold()
    scene.start("run-2")
    assert _alone(scene, demand=Demand(gate="refill", slots=1)) is None
    assert _alone(scene, demand=Demand(gate="refill", slots=2)) is not None


def test_where_tenants_take_turns_no_run_is_taken_alone(scene: Scene) -> None:
    scene.start(tenant="acme")
    assert _alone(scene, order="tenants") is None


def _held_beside_ready_ones(scene: Scene, *ready: str) -> str:
    """The token of the claimed run `run-1`; the others wait, in this order."""
    scene.start()
    token = scene.hold()
    for run_id in ready:
        scene.clock.advance(1)
        scene.start(run_id)
    return token


def _ending(scene: Scene, token: str, **parts: object) -> CommitProposal:
    return a_commit(scene.run(), token, at=scene.now, **{"status": RunStatus.DONE, **parts})  # type: ignore[arg-type]


def _along(
    scene: Scene, proposal: CommitProposal, token: str = "next", *, redeem: bool = True, **parts: object
) -> Taken | None:
    request = TakeRequest(policy=a_scan(**{"limit": 1, **parts}), token=token, redeem=redeem)
    return scene.runs.commit(SYSTEM, proposal, take=request).taken


def test_a_commit_that_ends_a_run_brings_the_next_one_along(scene: Scene) -> None:
    token = _held_beside_ready_ones(scene, "second", "third")
    taken = _along(scene, _ending(scene, token))
    assert taken is not None
    assert isinstance(taken.claim, Redeemed)
    (lease,) = taken.batch.leases
    assert (lease.run_id, lease.claim_token, taken.claim.claim_attempt) == ("second", "next", 1)
    assert taken.claim.run == scene.run("second")
    assert scene.run().status is RunStatus.DONE
    assert (scene.info("second").claim_redeemed, scene.info("third").claimed_at) == (True, None)
    assert scene.commit("second", "next").checkpoint_seq == 2


def test_a_commit_that_ends_a_run_brings_the_lease_of_the_next_one_along(scene: Scene) -> None:
    token = _held_beside_ready_ones(scene, "second", "third")
    taken = _along(scene, _ending(scene, token), redeem=False)
    assert taken is not None
    (lease,) = taken.batch.leases
    assert (taken.claim, lease.run_id, lease.claim_token, lease.claim_attempt) == (None, "second", "next", 1)
    assert (lease.checkpoint_seq, lease.claimed_at, lease.orphan_ttl) == (1, scene.now, TTL)
    info = scene.info("second")
    assert (info.claim_redeemed, info.claim_attempts, info.claimed_at, info.wake_at) == (False, 0, scene.now, None)
    assert scene.info("third").claimed_at is None
    assert scene.runs.redeem_claim(lease, token="private").claim_attempt == 1
    with pytest.raises(StaleFence):
        scene.runs.redeem_claim(lease, token="another")


@pytest.mark.parametrize("redeem", [True, False])
def test_the_slot_that_a_commit_frees_is_free_for_the_run_that_comes_along(scene: Scene, redeem: bool) -> None:
    demand = Demand(gate="refill", slots=1)
    token = _held_beside_ready_ones(scene, "second")
    taken = _along(scene, _ending(scene, token), redeem=redeem, demand=demand)
    assert taken is not None
    assert taken.batch.leases[0].run_id == "second"


@pytest.mark.parametrize("redeem", [True, False])
def test_no_run_comes_along_while_other_claims_take_all_slots(scene: Scene, redeem: bool) -> None:
    token = _held_beside_ready_ones(scene, "second", "third")
    assert scene.hold(limit=1)
    assert _along(scene, _ending(scene, token), redeem=redeem, demand=Demand(gate="refill", slots=1)) is None
    assert scene.info("third").claimed_at is None


@pytest.mark.parametrize("redeem", [True, False])
def test_a_commit_that_is_refused_brings_nobody_along(scene: Scene, redeem: bool) -> None:
    token = _held_beside_ready_ones(scene, "second")
    proposal = _ending(scene, token)
    scene.mutate("run-1")
    with pytest.raises(StaleFence):
        _along(scene, proposal, redeem=redeem)
    assert scene.info("second").claimed_at is None


@pytest.mark.parametrize("redeem", [True, False])
def test_a_commit_that_keeps_its_claim_brings_nobody_along(scene: Scene, redeem: bool) -> None:
    token = _held_beside_ready_ones(scene, "second")
    assert _along(scene, a_commit(scene.run(), token, at=scene.now, schedule=RETAIN), redeem=redeem) is None
    assert scene.info("second").claimed_at is None


@pytest.mark.parametrize("redeem", [True, False])
def test_a_commit_with_nobody_due_brings_nobody_along(scene: Scene, redeem: bool) -> None:
    assert _along(scene, _ending(scene, _held_beside_ready_ones(scene)), redeem=redeem) is None


@pytest.mark.parametrize("redeem", [True, False])
def test_a_run_whose_attempts_are_used_up_does_not_come_along(scene: Scene, redeem: bool) -> None:
    scene.start("second")
    for number in range(3):
        _taken(scene, f"token-{number}")
        scene.runs.release_claim("second", f"token-{number}", delay=timedelta(hours=number // 2))
    token = _held_beside_ready_ones(scene)
    scene.clock.advance(timedelta(hours=2))
    assert _along(scene, _ending(scene, token), redeem=redeem, preference="ready") is None
    assert scene.info("second").poisoned_at is None


def test_a_commit_that_is_repeated_finds_who_came_along_before(scene: Scene) -> None:
    token = _held_beside_ready_ones(scene, "second", "third")
    proposal = _ending(scene, token)
    for _ in range(2):
        taken = _along(scene, proposal)
        assert taken is not None
        assert isinstance(taken.claim, Redeemed)
        assert (taken.claim.run.id, taken.claim.claim_attempt) == ("second", 1)
    assert scene.info("third").claimed_at is None


def test_a_commit_that_is_repeated_finds_the_lease_that_came_along_before(scene: Scene) -> None:
    token = _held_beside_ready_ones(scene, "second", "third")
    proposal = _ending(scene, token)
    first, again = (_along(scene, proposal, redeem=False) for _ in range(2))
    assert first is not None
    assert again is not None
    assert again.claim is None
    assert [lease.claim_token for lease in again.batch.leases] == ["next"]
    assert (scene.info("second").claim_redeemed, scene.info("third").claimed_at) == (False, None)
    assert scene.runs.redeem_claim(again.batch.leases[0], token="private").claim_attempt == 1


def test_a_commit_that_is_repeated_leaves_a_lease_alone_that_has_been_redeemed_since(scene: Scene) -> None:
    token = _held_beside_ready_ones(scene, "second")
    proposal = _ending(scene, token)
    taken = _along(scene, proposal, redeem=False)
    assert taken is not None
    scene.runs.redeem_claim(taken.batch.leases[0], token="private")
    assert _along(scene, proposal, redeem=False) is None
    assert scene.commit("second", "private").checkpoint_seq == 2


def test_a_commit_that_is_repeated_finds_who_came_along_although_its_own_run_has_moved_on(scene: Scene) -> None:
    token = _held_beside_ready_ones(scene, "second")
    later = Release(kind="at", at=scene.now + timedelta(hours=1))
    proposal = a_commit(scene.run(), token, at=scene.now, schedule=later)
    assert _along(scene, proposal) is not None
    scene.mutate("run-1")
    taken = _along(scene, proposal)
    assert taken is not None
    assert isinstance(taken.claim, Redeemed)
    assert (taken.claim.run.id, taken.claim.claim_attempt) == ("second", 1)
