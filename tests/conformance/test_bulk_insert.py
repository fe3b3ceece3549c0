"""Inserting many runs at once: all of them or none, each as if it had been inserted alone."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from support.builders import ORDER, a_run, an_initial
from support.scene import Scene

from docket_celery.errors import DocketError, InvalidCommit, InvalidInput, KeyConflict, NotFound
from docket_celery.run.document import RunStatus, Task
from docket_celery.storage.contracts.values import SYSTEM, TENANTLESS, GraphRef, InitialRun, ListQuery, Release, Scope


def keyed(run_id: str, key: str, digest: str = "d1", **parts: Any) -> InitialRun:
    return an_initial(a_run(run_id, **parts), start_key=key, input_digest=digest)


def stored(scene: Scene) -> list[str]:
    return sorted(summary.run_id for summary in scene.runs.list_runs(SYSTEM, ListQuery(limit=1_000)).runs)


def test_every_run_is_stored_as_if_it_had_been_inserted_alone(scene: Scene) -> None:
    scene.publish()
    rich = a_run("run-1", fields={"total": 12.5, "text": 'a "b" \\ nul \x00'}, tasks=(Task(node="price", step=1),))
    later = an_initial(a_run("run-2"), schedule=Release(kind="at", at=scene.now + timedelta(hours=1)))
    ended = an_initial(a_run("run-3", status=RunStatus.DONE, fields={"total": None}))
    asking = an_initial(a_run("run-4", event_seq=3, status=RunStatus.WAITING))
    started = scene.runs.insert_runs(TENANTLESS, [an_initial(rich), later, ended, asking])
    assert [start.created for start in started] == [True] * 4
    assert {start.now for start in started} == {scene.now}
    for start in started:
        assert scene.run(start.run.id) == start.run
    wakes = {f"run-{number}": scene.info(f"run-{number}").wake_at for number in (1, 2, 3, 4)}
    assert wakes == {"run-1": scene.now, "run-2": scene.now + timedelta(hours=1), "run-3": None, "run-4": None}
    assert scene.run("run-3").finished_at == scene.now
    events = scene.storage.events.list_events(TENANTLESS, "run-4").events
    assert events == tuple(replace(event, at=scene.now) for event in asking.events)


def test_a_thousand_runs_are_claimed_like_any_other(scene: Scene) -> None:
    scene.publish()
    initials = [an_initial(a_run(f"run-{number:04}", fields={"n": number})) for number in range(1_000)]
    started = scene.runs.insert_runs(TENANTLESS, initials)
    assert [start.run.id for start in started] == [initial.run.id for initial in initials]
    assert scene.run("run-0731").fields == {"n": 731}
    assert len(scene.scan(limit=1_000).leases) == 1_000


def test_no_runs_are_nothing(scene: Scene) -> None:
    assert scene.runs.insert_runs(TENANTLESS, []) == ()


def test_the_owner_scope_decides_the_tenant_of_all(scene: Scene) -> None:
    scene.publish(Scope.of("acme"))
    scene.runs.insert_runs(Scope.of("acme"), [an_initial(a_run("run-1")), an_initial(a_run("run-2"))])
    assert [scene.info(run_id).tenant for run_id in ("run-1", "run-2")] == ["acme", "acme"]


REFUSED: dict[str, tuple[InitialRun, type[DocketError]]] = {
    "a second sequence": (an_initial(a_run("run-2", checkpoint_seq=2)), InvalidCommit),
    "a name that cannot be stored": (an_initial(a_run("nul \x00")), InvalidInput),
    "a graph version that is not here": (
        an_initial(a_run("run-2", ref=GraphRef(graph_id="order", graph_hash="b2" * 32))),
        NotFound,
    ),
    "an id that the batch has twice": (an_initial(a_run("run-1")), InvalidCommit),
    "an id that is taken": (an_initial(a_run("run-0")), InvalidCommit),
    "a key of another start": (keyed("run-2", "o-0", "d2"), KeyConflict),
    "a key that the batch has for another start": (keyed("run-2", "o-1", "d2"), KeyConflict),
}


@pytest.mark.parametrize(("wrong", "error"), REFUSED.values(), ids=REFUSED.keys())
def test_one_run_that_is_refused_keeps_all_of_them_out(
    scene: Scene, wrong: InitialRun, error: type[DocketError]
) -> None:
    scene.start("run-0", start_key="o-0", input_digest="d1")
    with pytest.raises(error):
        scene.runs.insert_runs(TENANTLESS, [keyed("run-1", "o-1"), wrong, an_initial(a_run("run-3"))])
    assert stored(scene) == ["run-0"]


def test_keys_that_are_held_give_the_runs_that_hold_them_and_the_others_are_started(scene: Scene) -> None:
    scene.start("run-0", start_key="o-0", input_digest="d1", fields={"n": 1})
    done = scene.commit("run-0", scene.hold(), status=RunStatus.DONE)
    batch = [keyed("run-1", "o-1"), keyed("run-2", "o-0"), an_initial(a_run("run-3"))]
    started = scene.runs.insert_runs(TENANTLESS, batch)
    assert [(start.run.id, start.created) for start in started] == [("run-1", True), ("run-0", False), ("run-3", True)]
    assert started[1].run == done
    assert stored(scene) == ["run-0", "run-1", "run-3"]
    assert scene.info("run-1").start_key == "o-1"


def test_the_same_batch_of_keys_again_starts_nothing(scene: Scene) -> None:
    scene.publish()
    first = scene.runs.insert_runs(TENANTLESS, [keyed(f"run-{n}", f"o-{n}", fields={"n": n}) for n in (3, 1, 2)])
    again = scene.runs.insert_runs(TENANTLESS, [keyed(f"run-{n + 10}", f"o-{n}", fields={"n": n}) for n in (1, 2, 3)])
    assert [start.created for start in again] == [False] * 3
    assert {start.run.id: start.run for start in again} == {start.run.id: start.run for start in first}
    assert stored(scene) == ["run-1", "run-2", "run-3"]


def test_a_key_that_a_batch_has_twice_is_held_by_the_first(scene: Scene) -> None:
    scene.publish()
    started = scene.runs.insert_runs(TENANTLESS, [keyed("run-1", "o-1"), keyed("run-2", "o-1")])
    assert [(start.run.id, start.created) for start in started] == [("run-1", True), ("run-1", False)]
    assert stored(scene) == ["run-1"]


def test_a_key_of_another_tenant_is_another_key(scene: Scene) -> None:
    scene.start("run-0", tenant="acme", start_key="o-1", input_digest="d9")
    scene.publish()
    (started,) = scene.runs.insert_runs(TENANTLESS, [keyed("run-1", "o-1")])
    assert started.created


def test_many_runs_join_no_connection_of_another_kind(scene: Scene) -> None:
    scene.publish(ref=ORDER)
    with pytest.raises(InvalidInput, match="connection"):
        scene.runs.insert_runs(TENANTLESS, [an_initial(a_run())], connection=object())
    assert stored(scene) == []
