"""Ending a run by force: nothing of it has to be readable, and nothing of it has to be known."""

from __future__ import annotations

import pytest
from support.builders import EXTERNAL
from support.scene import Scene

from docket_celery.errors import InactiveRun, NotFound, StaleFence
from docket_celery.run.document import Run, RunStatus, Task
from docket_celery.run.events import EventType
from docket_celery.storage.contracts.values import SYSTEM, TENANTLESS, Scope


def _force(scene: Scene, run_id: str = "run-1", *, scope: Scope = SYSTEM, reason: str = "") -> Run:
    return scene.runs.force_cancel(scope, run_id, reason=reason, commit_id=scene.ids.token()).run


def test_the_run_is_cancelled_with_nothing_left_open_and_keeps_its_fields(scene: Scene) -> None:
    scene.start(fields={"total": 1}, tasks=(Task(node="a", step=1, state="ready", attempt=1),))
    scene.clock.advance(5)
    ended = _force(scene)
    assert (ended.status, ended.checkpoint_seq, ended.event_seq, ended.fields) == (RunStatus.CANCELLED, 2, 2, {})
    assert (ended.updated_at, ended.finished_at) == (scene.now, scene.now)
    run = scene.run()
    assert (run.status, run.tasks, run.fields) == (RunStatus.CANCELLED, (), {"total": 1})


def test_one_event_says_so_and_why(scene: Scene) -> None:
    scene.start()
    _force(scene, reason="disk \x00 trouble")
    last = scene.storage.events.list_events(SYSTEM, "run-1", after_seq=1).events
    assert [(event.seq, event.type, event.at) for event in last] == [(2, EventType.RUN_CANCELLED, scene.now)]
    assert last[0].data == {"forced": True, "reason": "disk \x00 trouble"}


def test_a_claim_is_revoked(scene: Scene) -> None:
    scene.start()
    token = scene.hold()
    before = scene.run()
    _force(scene)
    assert scene.info().claimed_at is None
    with pytest.raises(StaleFence):
        scene.commit("run-1", token, schedule=None)
    assert before.checkpoint_seq + 1 == scene.run().checkpoint_seq


def test_poison_and_counters_are_cleared(scene: Scene) -> None:
    scene.start()
    scene.poison()
    _force(scene)
    info = scene.info()
    assert (info.view, info.poisoned_at, info.poison_reason, info.claim_attempts) == ("cancelled", None, None, 0)


def test_a_waiting_run_is_ended_too(scene: Scene) -> None:
    scene.start()
    scene.mutate("run-1", status=RunStatus.WAITING, schedule=EXTERNAL)
    assert _force(scene).status is RunStatus.CANCELLED
    assert scene.scan().leases == ()


def test_doing_it_again_changes_nothing(scene: Scene) -> None:
    scene.start()
    first = scene.runs.force_cancel(SYSTEM, "run-1", reason="", commit_id="commit-1")
    assert (first.changed, first.now) == (True, scene.now)
    scene.clock.advance(5)
    again = scene.runs.force_cancel(SYSTEM, "run-1", reason="", commit_id="commit-2")
    assert (again.run, again.changed, again.now) == (first.run, False, scene.now)


def test_a_run_that_ended_otherwise_is_inactive(scene: Scene) -> None:
    scene.start()
    scene.mutate("run-1", status=RunStatus.DONE)
    with pytest.raises(InactiveRun, match="done"):
        _force(scene)
    assert scene.run().status is RunStatus.DONE


def test_a_wrong_scope_sees_nothing_to_end(scene: Scene) -> None:
    scene.start(tenant="acme")
    for scope in (TENANTLESS, Scope.of("bolt")):
        with pytest.raises(NotFound):
            _force(scene, scope=scope)
    with pytest.raises(NotFound):
        _force(scene, "run-absent")
    assert _force(scene, scope=Scope.of("acme")).status is RunStatus.CANCELLED
