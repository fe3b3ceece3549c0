"""Start keys: a start that is repeated finds the run it made, and a different start is told apart."""

from __future__ import annotations

import pytest
from support.builders import a_run, an_initial
from support.scene import Scene

from docket_celery.errors import InvalidCommit, KeyConflict
from docket_celery.run.document import RunStatus
from docket_celery.storage.contracts.values import SYSTEM, TENANTLESS, GraphRef, ListQuery


def test_the_same_start_again_returns_the_existing_run(scene: Scene) -> None:
    first = scene.start("run-1", start_key="o-17", input_digest="d1", fields={"n": 1})
    again = scene.start("run-2", start_key="o-17", input_digest="d1", fields={"n": 1})
    assert (first.created, again.created) == (True, False)
    assert again.run == first.run
    assert [summary.run_id for summary in scene.runs.list_runs(SYSTEM, ListQuery()).runs] == ["run-1"]
    assert len(scene.storage.events.list_events(SYSTEM, "run-1").events) == 1


def test_the_existing_run_is_returned_as_it_now_stands_whatever_its_status(scene: Scene) -> None:
    scene.start("run-1", start_key="o-17", input_digest="d1")
    done = scene.commit("run-1", scene.hold(), status=RunStatus.DONE)
    again = scene.start("run-2", start_key="o-17", input_digest="d1")
    assert not again.created
    assert again.run == done


def test_a_start_found_again_keeps_its_claim_and_wake(scene: Scene) -> None:
    scene.start("run-1", start_key="o-17", input_digest="d1")
    scene.hold()
    before = scene.info()
    scene.start("run-2", start_key="o-17", input_digest="d1")
    assert scene.info() == before


def test_another_input_under_the_same_key_is_a_conflict_that_names_the_run(scene: Scene) -> None:
    scene.start("run-1", start_key="o-17", input_digest="d1")
    with pytest.raises(KeyConflict) as caught:
        scene.start("run-2", start_key="o-17", input_digest="d2")
    assert (caught.value.key, caught.value.run_id) == ("o-17", "run-1")


@pytest.mark.parametrize(
    "ref", [GraphRef(graph_id="order", graph_hash="b2" * 32), GraphRef(graph_id="refund", graph_hash="a1" * 32)]
)
def test_another_graph_version_under_the_same_key_is_a_conflict(scene: Scene, ref: GraphRef) -> None:
    scene.start("run-1", start_key="o-17", input_digest="d1")
    with pytest.raises(KeyConflict):
        scene.start("run-2", start_key="o-17", input_digest="d1", ref=ref)
    assert len(scene.runs.list_runs(SYSTEM, ListQuery()).runs) == 1


def test_a_key_belongs_to_its_owner_scope(scene: Scene) -> None:
    starts = [
        scene.start(f"run-{number}", tenant=tenant, start_key="o-17", input_digest=f"d{number}")
        for number, tenant in enumerate((None, "acme", "bolt"))
    ]
    assert [start.created for start in starts] == [True, True, True]


def test_runs_without_a_key_never_meet(scene: Scene) -> None:
    assert scene.start("run-1").created
    assert scene.start("run-2").created


def test_different_keys_make_different_runs(scene: Scene) -> None:
    assert scene.start("run-1", start_key="a", input_digest="d").created
    assert scene.start("run-2", start_key="b", input_digest="d").created


def test_inspection_shows_the_key(scene: Scene) -> None:
    scene.start("run-1", start_key="o-17", input_digest="d1")
    scene.start("run-2")
    assert (scene.info("run-1").start_key, scene.info("run-2").start_key) == ("o-17", None)


def test_a_malformed_start_is_told_before_its_key_is_looked_up(scene: Scene) -> None:
    scene.start("run-1", start_key="o-17", input_digest="d1")
    malformed = an_initial(a_run("run-2", checkpoint_seq=2), start_key="o-17", input_digest="d1")
    with pytest.raises(InvalidCommit):
        scene.runs.insert_run(TENANTLESS, malformed)
