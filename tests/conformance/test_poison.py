"""Recovery of poisoned runs: an operator's command that consumes neither commit nor event."""

from __future__ import annotations

import pytest
from support.scene import Scene

from docket_celery.errors import InactiveRun, NotFound
from docket_celery.run.document import RunStatus
from docket_celery.storage.contracts.values import SYSTEM


def _recover(scene: Scene, run_id: str = "run-1") -> None:
    assert scene.runs.retry_poisoned_run(SYSTEM, run_id) == scene.run(run_id)


def test_a_poisoned_run_is_cleared_and_woken_now(scene: Scene) -> None:
    scene.start()
    scene.poison()
    scene.clock.advance(100)
    _recover(scene)
    info = scene.info()
    assert (info.poisoned_at, info.poison_reason, info.wake_at) == (None, None, scene.now)
    assert (info.claim_attempts, info.claim_abandons, info.undelivered) == (0, 0, 0)


def test_a_run_poisoned_by_abandons_is_recovered_likewise(scene: Scene) -> None:
    scene.start()
    scene.abandon("run-1", scene.hold(), max_claim_abandons=0)
    _recover(scene)
    assert (scene.info().poisoned_at, scene.info().claim_abandons) == (None, 0)


def test_a_recovered_run_has_all_its_attempts_again(scene: Scene) -> None:
    scene.start()
    scene.poison()
    _recover(scene)
    scene.poison()
    assert scene.info().claim_attempts == 3


def test_recovery_consumes_neither_commit_nor_event(scene: Scene) -> None:
    before = scene.start(fields={"n": 1}).run
    scene.poison()
    _recover(scene)
    assert scene.run() == before
    assert len(scene.storage.events.list_events(SYSTEM, "run-1").events) == 1


def test_a_healthy_run_is_left_exactly_as_it_is(scene: Scene) -> None:
    scene.start()
    scene.abandon("run-1", scene.hold())
    scene.clock.advance(30)
    token = scene.hold()
    scene.clock.advance(5)
    before = scene.info()
    _recover(scene)
    assert scene.info() == before
    scene.commit("run-1", token)


def test_a_waiting_run_stays_waiting(scene: Scene) -> None:
    scene.start(status=RunStatus.WAITING)
    _recover(scene)
    assert (scene.info().view, scene.info().wake_at) == ("waiting", None)


@pytest.mark.parametrize("status", [RunStatus.DONE, RunStatus.FAILED, RunStatus.CANCELLED])
def test_an_ended_run_is_inactive(scene: Scene, status: RunStatus) -> None:
    scene.start(status=status)
    with pytest.raises(InactiveRun):
        scene.runs.retry_poisoned_run(SYSTEM, "run-1")


def test_an_unknown_run_is_not_found(scene: Scene) -> None:
    with pytest.raises(NotFound):
        scene.runs.retry_poisoned_run(SYSTEM, "run-absent")


def test_the_vehicle_of_a_poisoned_run_can_do_nothing_more(scene: Scene) -> None:
    scene.start()
    for _ in range(2):
        scene.hold()
        scene.expire()
    token = scene.hold()
    scene.expire()
    scene.scan()
    before = scene.info()
    scene.runs.release_claim("run-1", token)
    assert scene.abandon("run-1", token) == "stale"
    assert scene.runs.refresh_claims([("run-1", token)]) == set()
    assert scene.info() == before
