"""Reading single runs: the committed document, and the operational facts beside it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from support.scene import Scene

from docket_celery.errors import NotFound
from docket_celery.run.document import RunStatus
from docket_celery.storage.contracts.values import SYSTEM, Release


def test_an_unknown_run_is_not_found(scene: Scene) -> None:
    with pytest.raises(NotFound):
        scene.runs.fetch_run(SYSTEM, "run-absent")
    with pytest.raises(NotFound):
        scene.runs.inspect_run(SYSTEM, "run-absent")


def test_a_read_gives_the_last_committed_run(scene: Scene) -> None:
    scene.start()
    token = scene.hold()
    committed = scene.commit("run-1", token, fields={"total": 3})
    assert scene.run() == committed
    assert scene.info().run == committed


def test_inspection_never_shows_a_token(scene: Scene) -> None:
    scene.start()
    lease = scene.lease()
    assert lease.claim_token not in repr(scene.info())
    token = scene.redeem(lease, "private-token")
    assert token not in repr(scene.info())


def test_inspection_is_dated_by_the_store(scene: Scene) -> None:
    scene.start()
    later = scene.clock.advance(7)
    assert scene.info().observed_at == later


def test_a_reader_sees_what_a_running_run_is_doing(scene: Scene) -> None:
    scene.start(schedule=Release(kind="at", at=scene.now + timedelta(seconds=5)))
    assert scene.info().view == "scheduled"
    scene.clock.advance(5)
    assert scene.info().view == "ready"
    scene.lease()
    assert scene.info().view == "claimed"


def test_a_reader_sees_poison_waiting_and_the_end(scene: Scene) -> None:
    scene.start("run-1")
    scene.poison("run-1")
    assert scene.info("run-1").view == "poisoned"
    scene.start("run-2", status=RunStatus.WAITING)
    assert scene.info("run-2").view == "waiting"
    scene.start("run-3")
    scene.commit("run-3", scene.hold(), status=RunStatus.DONE)
    assert scene.info("run-3").view == "done"


def test_reading_changes_nothing(scene: Scene) -> None:
    scene.start()
    scene.hold()
    before = scene.info()
    scene.run()
    scene.info()
    assert scene.info() == before
