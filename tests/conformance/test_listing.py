"""Lists of runs: newest first, by an exclusive cursor, filtered by the store."""

from __future__ import annotations

from typing import Any

import pytest
from support.builders import ORDER
from support.scene import Scene

from docket_celery.errors import InvalidInput
from docket_celery.run.document import RunStatus
from docket_celery.run.views import RunCursor, RunPage
from docket_celery.storage.contracts.values import SYSTEM, GraphRef, ListQuery, Scope

REFUND = GraphRef(graph_id="refund", graph_hash="c3" * 32)
ORDER_2 = GraphRef(graph_id="order", graph_hash="b2" * 32)


def _ids(page: RunPage) -> list[str]:
    return [summary.run_id for summary in page.runs]


def _list(scene: Scene, scope: Scope = SYSTEM, **query: Any) -> RunPage:
    return scene.runs.list_runs(scope, ListQuery(**query))


def test_runs_come_newest_first_and_by_descending_id_within_an_instant(scene: Scene) -> None:
    for run_id in ("run-b", "run-c", "run-a"):
        scene.start(run_id)
    scene.clock.advance(1)
    scene.start("run-0")
    assert _ids(_list(scene)) == ["run-0", "run-c", "run-b", "run-a"]


def test_ids_are_ordered_by_code_point_not_by_language(scene: Scene) -> None:
    for run_id in ("a", "B", "ä", "_", "z"):
        scene.start(run_id)
    assert _ids(_list(scene)) == sorted(("a", "B", "ä", "_", "z"), reverse=True)


def test_pages_join_without_hole_or_double(scene: Scene) -> None:
    for number in range(7):
        scene.start(f"run-{number}")
        scene.clock.advance(number % 2)
    whole, seen, cursor, more = _ids(_list(scene)), [], None, True
    while more:
        page = _list(scene, limit=3, before=cursor)
        seen += _ids(page)
        cursor, more = RunCursor.decode(page.next_before or ""), page.has_more
    assert seen == whole


def test_the_cursor_is_exclusive_and_names_the_last_run_of_the_page(scene: Scene) -> None:
    for run_id in ("run-1", "run-2"):
        scene.start(run_id)
    page = _list(scene, limit=1)
    assert page.next_before == RunCursor(started_at=scene.now, run_id="run-2").encode()
    assert _ids(_list(scene, before=RunCursor.decode(page.next_before))) == ["run-1"]


def test_has_more_is_exact_at_the_boundary(scene: Scene) -> None:
    for run_id in ("run-1", "run-2"):
        scene.start(run_id)
    assert _list(scene, limit=1).has_more
    assert not _list(scene, limit=2).has_more


def test_an_empty_page_keeps_the_cursor_it_was_given(scene: Scene) -> None:
    assert _list(scene) == RunPage(runs=(), next_before=None, has_more=False)
    cursor = RunCursor(started_at=scene.now, run_id="run-1")
    assert _list(scene, before=cursor) == RunPage(runs=(), next_before=cursor.encode(), has_more=False)


def test_a_run_that_appears_later_does_not_shift_the_next_page(scene: Scene) -> None:
    for run_id in ("run-1", "run-2", "run-3"):
        scene.start(run_id)
    page = _list(scene, limit=2)
    scene.clock.advance(1)
    scene.start("run-4")
    assert _ids(_list(scene, before=RunCursor.decode(page.next_before or ""))) == ["run-1"]


def test_filters_name_graph_version_and_status(scene: Scene) -> None:
    scene.start("run-1", ref=ORDER)
    scene.start("run-2", ref=ORDER_2, status=RunStatus.WAITING)
    scene.start("run-3", ref=REFUND, status=RunStatus.DONE)
    assert _ids(_list(scene, graph_id="order")) == ["run-2", "run-1"]
    assert _ids(_list(scene, graph_hash=ORDER_2.graph_hash)) == ["run-2"]
    assert _ids(_list(scene, statuses=(RunStatus.DONE, RunStatus.WAITING))) == ["run-3", "run-2"]
    assert _ids(_list(scene, graph_id="order", statuses=(RunStatus.DONE,))) == []


def test_a_filtered_page_counts_only_what_it_shows(scene: Scene) -> None:
    for number in range(6):
        scene.start(f"run-{number}", ref=REFUND if number % 2 else ORDER)
    page = _list(scene, graph_id="refund", limit=2)
    assert _ids(page) == ["run-5", "run-3"]
    assert page.has_more


def test_a_summary_holds_the_committed_and_the_operational_facts(scene: Scene) -> None:
    scene.start("run-1", tenant="acme")
    token = scene.hold()
    scene.clock.advance(2)
    committed = scene.commit("run-1", token)
    (summary,) = _list(scene).runs
    assert summary.tenant == "acme"
    assert (summary.graph_id, summary.graph_hash) == (ORDER.graph_id, ORDER.graph_hash)
    assert (summary.status, summary.step, summary.checkpoint_seq) == (RunStatus.RUNNING, committed.step, 2)
    assert (summary.started_at, summary.updated_at) == (committed.started_at, scene.now)
    assert (summary.wake_at, summary.claimed_at, summary.finished_at) == (scene.now, None, None)
    assert summary.poisoned_at is None


def test_poisoned_runs_are_listed_alone(scene: Scene) -> None:
    scene.start("run-1")
    scene.poison("run-1")
    scene.start("run-2")
    assert _ids(_list(scene, poisoned=True)) == ["run-1"]
    assert _ids(_list(scene, poisoned=True, statuses=(RunStatus.DONE,))) == []
    scene.runs.retry_poisoned_run(SYSTEM, "run-1")
    assert _ids(_list(scene, poisoned=True)) == []
    assert sorted(_ids(_list(scene, poisoned=False))) == ["run-1", "run-2"]


def test_a_summary_shows_claim_poison_and_end(scene: Scene) -> None:
    scene.start("run-1")
    scene.poison()
    assert _list(scene).runs[0].poisoned_at == scene.now
    scene.start("run-2")
    token = scene.hold()
    assert _list(scene).runs[0].claimed_at == scene.now
    scene.commit("run-2", token, status=RunStatus.FAILED)
    assert _list(scene).runs[0].finished_at == scene.now


@pytest.mark.parametrize("limit", [0, 1_001])
def test_a_page_has_from_one_to_a_thousand_runs(limit: int) -> None:
    with pytest.raises(InvalidInput):
        ListQuery(limit=limit)


def test_statuses_are_none_or_some() -> None:
    with pytest.raises(InvalidInput):
        ListQuery(statuses=())
