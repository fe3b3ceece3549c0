"""Tenants taking turns: who is served first, how often, and how many runs one tenant may have out."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest
from support.builders import TTL, a_scan
from support.scene import Scene

from docket_celery.errors import InvalidInput
from docket_celery.storage.contracts.claims import ClaimBatch, Demand
from docket_celery.storage.contracts.values import Release

FRACTIONS = [number / 50 for number in range(50)]


def _start(scene: Scene, tenant: str | None, count: int, *, later: float = 0.0) -> None:
    """`count` due runs `<tenant>-<number>`, a microsecond apart in their order."""
    for number in range(count):
        wake = scene.now - timedelta(seconds=60 - later) + timedelta(microseconds=number)
        scene.start(f"{tenant}-{number:02}", tenant=tenant, schedule=Release(kind="at", at=wake))


def _scan(scene: Scene, **parts: object) -> ClaimBatch:
    return scene.scan(**({"order": "tenants"} | parts))


def _ids(batch: ClaimBatch) -> list[str]:
    return sorted(lease.run_id for lease in batch.leases)


def _tenants(batch: ClaimBatch) -> Counter[str | None]:
    return Counter(lease.tenant for lease in batch.leases)


def _expired(scene: Scene, tenant: str, count: int) -> None:
    """`count` runs `<tenant>-x<number>` whose redeemed claims have run out."""
    for number in range(count):
        scene.start(f"{tenant}-x{number}", tenant=tenant)
    for lease in scene.scan(limit=100).leases:
        scene.redeem(lease)
    scene.expire()


# -- breadth first ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fraction", [0.0, 0.3, 0.999])
def test_every_tenants_first_run_goes_before_any_tenants_second(scene: Scene, fraction: float) -> None:
    _start(scene, "a", 20)
    _start(scene, "b", 1, later=30)
    _start(scene, "c", 3, later=50)
    assert _ids(_scan(scene, limit=3, fraction=fraction)) == ["a-00", "b-00", "c-00"]
    assert _ids(_scan(scene, limit=4, fraction=fraction)) == ["a-01", "a-02", "c-01", "c-02"]


def test_a_lone_tenant_takes_the_whole_batch_in_the_order_of_age(scene: Scene) -> None:
    _start(scene, "a", 20)
    assert _ids(_scan(scene, limit=5)) == [f"a-{number:02}" for number in range(5)]


def test_what_small_tenants_leave_goes_to_the_one_with_a_backlog(scene: Scene) -> None:
    _start(scene, "a", 40)
    for tenant in "bcdefghi":
        _start(scene, tenant, 1)
    assert _tenants(_scan(scene, limit=30)) == {"a": 22} | dict.fromkeys("bcdefghi", 1)


def test_with_more_tenants_than_places_each_place_is_another_tenants(scene: Scene) -> None:
    for number in range(12):
        _start(scene, f"t{number}", 3)
    batch = _scan(scene, limit=5)
    assert len(_tenants(batch)) == 5
    assert all(run_id.endswith("-00") for run_id in _ids(batch))


def test_runs_of_no_tenant_take_turns_like_those_of_one(scene: Scene) -> None:
    _start(scene, None, 5)
    _start(scene, "a", 5)
    assert _ids(_scan(scene, limit=4)) == ["None-00", "None-01", "a-00", "a-01"]


def test_a_tenant_whose_runs_only_sleep_has_no_turn(scene: Scene) -> None:
    scene.start("asleep", tenant="a", schedule=Release(kind="at", at=scene.now + TTL))
    _start(scene, "b", 2)
    assert _ids(_scan(scene, limit=2)) == ["b-00", "b-01"]


def test_chance_gives_each_tenant_the_first_turn_now_and_then(scene: Scene) -> None:
    for tenant in ("a", "b", "c"):
        _start(scene, tenant, 2)
    first = set()
    for fraction in FRACTIONS:
        lease = _scan(scene, limit=1, fraction=fraction).leases[0]
        first.add(lease.tenant)
        scene.runs.release_claims([(lease.run_id, lease.claim_token)])
    assert first == {"a", "b", "c"}


def test_one_fraction_chooses_one_tenant(scene: Scene) -> None:
    for number in range(9):
        _start(scene, f"t{number}", 5)
    served = {_scan(scene, limit=1, fraction=0.37).leases[0].tenant for _ in range(5)}
    assert len(served) == 1


def test_more_tenants_sleep_than_one_scan_looks_at_and_yet_what_is_due_is_found(scene: Scene) -> None:
    for number in range(150):
        scene.start(f"asleep-{number}", tenant=f"t{number}", schedule=Release(kind="at", at=scene.now + TTL))
    _start(scene, "a", 1)
    _start(scene, "b", 3)
    assert _ids(_scan(scene, limit=4)) == ["a-00", "b-00", "b-01", "b-02"]


# -- in progress ------------------------------------------------------------------------------------------------------


def test_a_run_that_parked_at_once_keeps_its_tenants_turn(scene: Scene) -> None:
    _start(scene, "a", 3)
    token = scene.redeem(_scan(scene, limit=1).leases[0])
    scene.commit("a-00", token)
    assert scene.info("a-00").wake_at == scene.now
    assert _ids(_scan(scene, limit=1)) == ["a-00"]
    assert _ids(_scan(scene, limit=1)) == ["a-01"]


def test_a_run_in_progress_does_not_go_before_another_tenants_first(scene: Scene) -> None:
    _start(scene, "a", 2)
    for lease in _scan(scene, limit=2).leases:
        scene.commit(lease.run_id, scene.redeem(lease))
    _start(scene, "b", 2)
    assert _ids(_scan(scene, limit=2)) == ["a-00", "b-00"]


def test_runs_in_progress_follow_each_other_by_age(scene: Scene) -> None:
    _start(scene, "a", 3)
    tokens = {lease.run_id: scene.redeem(lease) for lease in _scan(scene, limit=2).leases}
    scene.commit("a-01", tokens["a-01"])
    scene.clock.advance(1)
    scene.commit("a-00", tokens["a-00"])
    assert [_scan(scene, limit=1).leases[0].run_id for _ in range(3)] == ["a-01", "a-00", "a-02"]


def test_a_run_in_progress_that_sleeps_holds_nothing_up(scene: Scene) -> None:
    _start(scene, "a", 2)
    token = scene.redeem(_scan(scene, limit=1).leases[0])
    scene.commit("a-00", token, schedule=Release(kind="at", at=scene.now + TTL))
    assert _ids(_scan(scene, limit=2)) == ["a-01"]


# -- expired claims ---------------------------------------------------------------------------------------------------


def test_each_class_takes_up_to_half_and_the_ready_one_the_odd_place(scene: Scene) -> None:
    _expired(scene, "a", 6)
    _start(scene, "b", 6)
    assert _tenants(_scan(scene, limit=5)) == {"a": 2, "b": 3}


@pytest.mark.parametrize(("expired", "ready"), [(1, 6), (6, 1), (0, 6), (6, 0)])
def test_what_one_class_leaves_the_other_takes(scene: Scene, expired: int, ready: int) -> None:
    _expired(scene, "a", expired)
    _start(scene, "b", ready)
    batch = _scan(scene, limit=6)
    assert len(batch.leases) == 6
    assert batch.stolen == (6 - ready if ready < 3 else min(expired, 3))


def test_expired_claims_are_served_by_age_whoever_owns_them(scene: Scene) -> None:
    _expired(scene, "a", 3)
    scene.start("b-late", tenant="b")
    scene.hold(order="tenants", preference="ready", limit=1)
    scene.expire()
    assert _ids(_scan(scene, limit=3)) == ["a-x0", "a-x1", "a-x2"]


def test_at_a_demand_of_one_the_preferred_class_is_served_and_falls_through(scene: Scene) -> None:
    _expired(scene, "a", 2)
    _start(scene, "b", 1)
    assert _ids(_scan(scene, limit=1, preference="ready")) == ["b-00"]
    assert _ids(_scan(scene, limit=1, preference="ready")) == ["a-x0"]
    _start(scene, "c", 1)
    assert _ids(_scan(scene, limit=1, preference="expired")) == ["a-x1"]
    assert _ids(_scan(scene, limit=1, preference="expired")) == ["c-00"]


def test_without_a_preference_a_single_place_goes_to_an_expired_claim(scene: Scene) -> None:
    _expired(scene, "a", 1)
    _start(scene, "b", 1)
    assert _ids(_scan(scene, limit=1)) == ["a-x0"]


def test_an_exhausted_run_is_poisoned_in_its_tenants_turn(scene: Scene) -> None:
    scene.start("a-00", tenant="a")
    for _ in range(3):
        scene.runs.release_claim("a-00", scene.hold())
    _start(scene, "b", 1)
    batch = _scan(scene, limit=2)
    assert (_ids(batch), [halted.run_id for halted in batch.poisoned]) == (["b-00"], ["a-00"])


# -- the cap ----------------------------------------------------------------------------------------------------------


def test_a_tenant_at_its_cap_has_no_turn(scene: Scene) -> None:
    _start(scene, "a", 10)
    _start(scene, "b", 1)
    assert _tenants(_scan(scene, limit=8, tenant_cap=3)) == {"a": 3, "b": 1}
    assert _scan(scene, limit=8, tenant_cap=3).leases == ()
    assert len(_scan(scene, limit=8, tenant_cap=4).leases) == 1


def test_a_claim_given_back_makes_room_below_the_cap(scene: Scene) -> None:
    _start(scene, "a", 3)
    (lease,) = _scan(scene, tenant_cap=1).leases
    scene.runs.release_claims([(lease.run_id, lease.claim_token)])
    assert len(_scan(scene, tenant_cap=1).leases) == 1


def test_expired_claims_count_against_the_cap_and_their_steal_is_never_refused(scene: Scene) -> None:
    _expired(scene, "a", 2)
    _start(scene, "a", 5)
    batch = _scan(scene, limit=10, tenant_cap=2)
    assert (_ids(batch), batch.stolen) == (["a-x0", "a-x1"], 2)
    scene.expire()
    assert _scan(scene, limit=10, tenant_cap=1).reissued == 2


def test_each_tenant_has_a_cap_of_its_own(scene: Scene) -> None:
    for tenant in ("a", "b", None):
        _start(scene, tenant, 5)
    assert _tenants(_scan(scene, limit=10, tenant_cap=2)) == {"a": 2, "b": 2, None: 2}


def test_a_tenant_at_its_cap_does_not_cost_another_one_its_turn(scene: Scene) -> None:
    _start(scene, "a", 5)
    _start(scene, "b", 50)
    _scan(scene, limit=2, tenant_cap=1)
    for fraction in FRACTIONS:
        assert _scan(scene, limit=1, tenant_cap=1, fraction=fraction).leases == ()
    _start(scene, "c", 1)
    assert _ids(_scan(scene, limit=1, tenant_cap=1)) == ["c-00"]


# -- with the rest ----------------------------------------------------------------------------------------------------


def test_free_slots_bound_the_turns_and_an_early_tick_takes_none(scene: Scene) -> None:
    for tenant in ("a", "b", "c"):
        _start(scene, tenant, 4)
    demand = Demand(gate="tick", slots=3, interval=TTL)
    assert _tenants(_scan(scene, limit=100, demand=demand)) == dict.fromkeys("abc", 1)
    assert not _scan(scene, limit=100, demand=demand).scanned
    assert _scan(scene, demand=Demand(gate="refill", slots=3)).leases == ()
    assert len(_scan(scene, limit=1, demand=Demand(gate="nudge", slots=4)).leases) == 1


def test_a_scan_for_tenants_tells_the_next_wake_too(scene: Scene) -> None:
    scene.start("asleep", tenant="a", schedule=Release(kind="at", at=scene.now + TTL))
    assert _scan(scene).next_wake_at == scene.now + TTL


@pytest.mark.parametrize(
    "parts",
    [{"fraction": -0.1}, {"fraction": 1.0}, {"order": "tenants", "tenant_cap": 0}, {"tenant_cap": 3}],
    ids=str,
)
def test_a_policy_for_turns_out_of_bounds_is_refused(parts: dict[str, int]) -> None:
    with pytest.raises(InvalidInput):
        a_scan(**parts)
