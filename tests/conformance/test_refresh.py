"""Keeping claims alive: under the exact token, toward the store's now, never backward."""

from __future__ import annotations

from datetime import timedelta

import pytest
from support.builders import TTL
from support.scene import Scene

from docket_celery.errors import ClaimLost


def test_a_refresh_moves_the_claim_time_to_now(scene: Scene) -> None:
    scene.start()
    token = scene.hold()
    later = scene.clock.advance(20)
    scene.runs.refresh_claim("run-1", token)
    assert scene.info().claimed_at == later


def test_a_refreshed_claim_does_not_expire(scene: Scene) -> None:
    scene.start()
    token = scene.hold()
    scene.clock.advance(TTL)
    scene.runs.refresh_claim("run-1", token)
    scene.clock.advance(TTL)
    assert scene.scan().leases == ()


def test_an_expired_claim_that_nobody_took_over_can_be_refreshed(scene: Scene) -> None:
    scene.start()
    token = scene.hold()
    scene.expire()
    scene.runs.refresh_claim("run-1", token)
    assert scene.scan().leases == ()


def test_a_refresh_never_moves_backward(scene: Scene) -> None:
    scene.start()
    token = scene.redeem(scene.lease())
    claimed_at = scene.info().claimed_at
    scene.clock.advance(timedelta(seconds=-10))
    scene.runs.refresh_claim("run-1", token)
    assert scene.runs.refresh_claims([("run-1", token)]) == {"run-1"}
    assert scene.info().claimed_at == claimed_at


def test_a_refresh_changes_only_the_claim_time(scene: Scene) -> None:
    scene.start()
    token = scene.hold()
    before = scene.info()
    scene.runs.refresh_claim("run-1", token)
    assert scene.info() == before


@pytest.mark.parametrize("how", ["stolen", "released", "committed", "mutated", "unknown"])
def test_a_lost_claim_is_told_and_nothing_changes(scene: Scene, how: str) -> None:
    scene.start()
    token = scene.hold()
    run_id = "run-1"
    match how:
        case "stolen":
            scene.expire()
            scene.hold()
        case "released":
            scene.runs.release_claim("run-1", token)
        case "committed":
            scene.commit("run-1", token)
        case "mutated":
            scene.mutate("run-1")
        case "unknown":
            run_id = "run-absent"
    before = scene.info()
    with pytest.raises(ClaimLost):
        scene.runs.refresh_claim(run_id, token)
    assert scene.runs.refresh_claims([(run_id, token)]) == set()
    assert scene.info() == before


def test_the_token_of_a_redeemed_lease_refreshes_nothing(scene: Scene) -> None:
    scene.start()
    lease = scene.lease()
    scene.redeem(lease)
    with pytest.raises(ClaimLost):
        scene.runs.refresh_claim("run-1", lease.claim_token)


def test_a_batch_answers_for_each_claim(scene: Scene) -> None:
    for run_id in ("run-1", "run-2", "run-3"):
        scene.start(run_id)
    tokens = {lease.run_id: scene.redeem(lease) for lease in scene.scan().leases}
    scene.runs.release_claim("run-2", tokens["run-2"])
    later = scene.clock.advance(9)
    claims = [*tokens.items(), ("run-absent", "none"), ("run-3", "stale")]
    assert scene.runs.refresh_claims(claims) == {"run-1", "run-3"}
    assert (scene.info("run-1").claimed_at, scene.info("run-3").claimed_at) == (later, later)
    assert scene.info("run-2").claimed_at is None


def test_an_empty_batch_is_nothing_to_do(scene: Scene) -> None:
    assert scene.runs.refresh_claims([]) == set()
