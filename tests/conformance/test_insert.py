"""Inserting a run: what is stored, what is stamped, what is refused, and that a refusal stores nothing."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from support.builders import a_run, an_initial, events_of
from support.clock import NOON
from support.scene import Scene

from docket_celery.errors import InvalidCommit, InvalidInput, NotFound
from docket_celery.run.document import Failure, OpenInterrupt, RunStatus, Task
from docket_celery.run.moment import CheckpointType
from docket_celery.storage.contracts.values import (
    SYSTEM,
    TENANTLESS,
    GraphRef,
    InitialRun,
    ListQuery,
    Release,
    Scope,
)

EXACT_VALUES: dict[str, Any] = {
    "nothing": None,
    "truth": True,
    "one": 1,
    "one_point": 1.0,
    "beyond_a_double": 2**53 + 1,
    "beyond_a_bigint": 2**70,
    "tiny": 5e-324,
    "huge": 1.7976931348623157e308,
    "tenth": 0.1,
    "empty": "",
    "text": 'naïve \U0001f40b \u2028 \\u0041 "quoted" nul \x00 lone \ud800',
    "list": [1, 1.0, True, None, [], {}, ""],
    "object": {"": 0, "b": {"a": [1.5]}, "a": -0.25},
}


def test_an_inserted_run_reads_back_equal_to_the_one_returned(scene: Scene) -> None:
    started = scene.start(fields={"total": 12.5}, tasks=(Task(node="price", step=1),))
    assert started.created
    assert scene.run() == started.run
    assert started.run.fields == {"total": 12.5}
    assert started.run.tasks == (Task(node="price", step=1),)


def test_every_part_of_the_document_survives(scene: Scene) -> None:
    started = scene.start(
        step=4,
        fields={"a": [1]},
        tasks=(
            Task(node="a", step=4, state="retrying", attempt=2, due_at=NOON + timedelta(hours=1)),
            Task(node="b", step=4, state="finished", writes={"x": [1.0]}, answers={"ok": True}, asked=1),
        ),
        interrupts=(
            OpenInterrupt(id="i", node="c", step=4, field="ok", schema={"type": "null"}, payload=[1], opened_at=NOON),
        ),
        arrived={"[a, b] -> join": ("a",)},
        answered=("i-0",),
        failure=Failure(code="node_failed", message="no", node="a", error_type="ValueError", details={"n": 1}),
    )
    read = scene.run()
    assert read == started.run
    assert repr(read.tasks) == repr(started.run.tasks)
    assert read.arrived == {"[a, b] -> join": ("a",)}


def test_values_keep_type_and_value(scene: Scene) -> None:
    scene.start(fields=EXACT_VALUES)
    read = scene.run().fields
    assert {name: repr(value) for name, value in read.items()} == {n: repr(v) for n, v in EXACT_VALUES.items()}


def test_the_store_stamps_start_update_and_events_with_its_own_clock(scene: Scene) -> None:
    scene.publish()
    elsewhere = NOON - timedelta(days=3)
    started = scene.runs.insert_run(TENANTLESS, an_initial(a_run(at=elsewhere)))
    assert started.now == scene.now
    assert (started.run.started_at, started.run.updated_at) == (scene.now, scene.now)
    assert started.run.finished_at is None
    assert [event.at for event in scene.storage.events.list_events(SYSTEM, "run-1").events] == [scene.now]


def test_a_first_commit_is_woken_at_once_with_all_counters_at_zero(scene: Scene) -> None:
    scene.start()
    info = scene.info()
    assert info.wake_at == scene.now
    assert (info.claimed_at, info.claim_redeemed) == (None, False)
    assert (info.claim_attempts, info.claim_abandons, info.undelivered) == (0, 0, 0)
    assert (info.abandon_reason, info.poisoned_at, info.poison_reason) == (None, None, None)


def test_a_first_wake_may_lie_in_the_future(scene: Scene) -> None:
    at = scene.now + timedelta(hours=2)
    scene.start(schedule=Release(kind="at", at=at))
    assert scene.info().wake_at == at
    assert scene.info().view == "scheduled"


@pytest.mark.parametrize("status", [RunStatus.DONE, RunStatus.FAILED, RunStatus.CANCELLED])
def test_a_run_that_is_terminal_from_the_start_has_no_wake_and_is_finished_now(scene: Scene, status: RunStatus) -> None:
    run = scene.start(status=status).run
    assert scene.info().wake_at is None
    assert run.finished_at == scene.now
    assert scene.scan().leases == ()


def test_a_run_that_waits_from_the_start_has_no_wake(scene: Scene) -> None:
    scene.start(status=RunStatus.WAITING)
    assert scene.info().wake_at is None
    assert scene.info().view == "waiting"


def test_the_owner_scope_alone_decides_the_tenant(scene: Scene) -> None:
    scene.start("run-1", tenant="acme")
    scene.start("run-2")
    assert scene.info("run-1").tenant == "acme"
    assert scene.info("run-2").tenant is None


def test_the_system_scope_owns_nothing_and_cannot_insert(scene: Scene) -> None:
    scene.publish()
    with pytest.raises(InvalidInput, match="owner scope"):
        scene.runs.insert_run(SYSTEM, an_initial(a_run()))


def test_a_graph_version_that_this_scope_does_not_have_is_not_found(scene: Scene) -> None:
    scene.publish(Scope.of("acme"))
    scene.publish(TENANTLESS, GraphRef(graph_id="order", graph_hash="b2" * 32))
    for scope in (TENANTLESS, Scope.of("other")):
        with pytest.raises(NotFound):
            scene.runs.insert_run(scope, an_initial(a_run()))
    assert scene.runs.list_runs(SYSTEM, ListQuery()).runs == ()


INVALID: dict[str, InitialRun] = {
    "a second sequence": an_initial(a_run(checkpoint_seq=2)),
    "no sequence": an_initial(a_run(checkpoint_seq=0)),
    "another checkpoint type": an_initial(a_run(), checkpoint_type=CheckpointType.STEP_COMMITTED),
    "a naive start time": an_initial(a_run(at=datetime(2026, 1, 1))),
    "a missing event": an_initial(a_run(), events=()),
    "an event too many": an_initial(a_run(), events=events_of(a_run(event_seq=2), 1)),
    "a hole": an_initial(a_run(event_seq=3), events=events_of(a_run(event_seq=3), 1)[::2]),
    "a wrong order": an_initial(a_run(event_seq=2), events=events_of(a_run(event_seq=2), 1)[::-1]),
    "events that do not begin at one": an_initial(a_run(event_seq=2), events=events_of(a_run(event_seq=2), 2)),
    "another run's event": an_initial(a_run(), events=events_of(a_run("run-9"), 1)),
    "running and external": an_initial(a_run(), schedule=Release(kind="external")),
    "running and terminal": an_initial(a_run(), schedule=Release(kind="terminal")),
    "waiting and immediate": an_initial(a_run(status=RunStatus.WAITING), schedule=Release(kind="immediate")),
    "done and immediate": an_initial(a_run(status=RunStatus.DONE), schedule=Release(kind="immediate")),
    "done and at": an_initial(a_run(status=RunStatus.DONE), schedule=Release(kind="at", at=NOON)),
    "at without an instant": an_initial(a_run(), schedule=Release(kind="at")),
    "at a naive instant": an_initial(a_run(), schedule=Release(kind="at", at=datetime(2026, 1, 1))),
    "immediate with an instant": an_initial(a_run(), schedule=Release(kind="immediate", at=NOON)),
    "a key without a digest": an_initial(a_run(), start_key="o-17"),
    "a digest without a key": an_initial(a_run(), input_digest="d1"),
}


@pytest.mark.parametrize("initial", INVALID.values(), ids=INVALID.keys())
def test_a_first_commit_that_contradicts_itself_stores_nothing(scene: Scene, initial: InitialRun) -> None:
    scene.publish()
    with pytest.raises(InvalidCommit):
        scene.runs.insert_run(TENANTLESS, initial)
    assert scene.runs.list_runs(SYSTEM, ListQuery()).runs == ()


def test_a_malformed_first_commit_is_told_before_a_missing_graph(scene: Scene) -> None:
    with pytest.raises(InvalidCommit):
        scene.runs.insert_run(TENANTLESS, an_initial(a_run(checkpoint_seq=2)))


@pytest.mark.parametrize("name", ["", "x" * 256, "nul \x00", "lone \ud800"])
def test_a_name_that_cannot_be_stored_is_refused(scene: Scene, name: str) -> None:
    scene.publish()
    with pytest.raises(InvalidInput):
        scene.runs.insert_run(TENANTLESS, an_initial(a_run(name)))
    with pytest.raises(InvalidInput):
        scene.runs.insert_run(TENANTLESS, an_initial(a_run(), start_key=name, input_digest="d"))


def test_a_run_id_that_is_taken_is_refused_and_the_first_run_stays(scene: Scene) -> None:
    first = scene.start(fields={"n": 1}).run
    with pytest.raises(InvalidCommit, match="taken"):
        scene.start(fields={"n": 2})
    assert scene.run() == first


def test_stored_values_cannot_be_changed_through_what_was_given_or_read(scene: Scene) -> None:
    given = {"log": ["a"]}
    scene.start(fields=given)
    given["log"].append("given")
    scene.run().fields["log"].append("read")
    scene.info().run.fields["log"].append("inspected")
    assert scene.run().fields == {"log": ["a"]}


def test_events_with_a_run_are_stored_with_it(scene: Scene) -> None:
    scene.publish()
    run = a_run(event_seq=3, at=scene.now)
    initial = an_initial(run)
    scene.runs.insert_run(TENANTLESS, initial)
    page = scene.storage.events.list_events(TENANTLESS, run.id)
    assert page.events == tuple(replace(event, at=scene.now) for event in initial.events)
