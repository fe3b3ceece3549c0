"""Retention: what has ended long enough ago goes, whole and in bounded passes; everything else stays."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from support.builders import EXTERNAL, IMMEDIATE
from support.scene import RETAIN, Scene

from docket_celery.errors import InvalidInput, NotFound
from docket_celery.run.document import RunStatus
from docket_celery.storage.contracts.retention import PruneCount, PrunePolicy
from docket_celery.storage.contracts.values import SYSTEM, TENANTLESS, GraphRef, ListQuery, Scope

DAY = timedelta(days=1)
MONTH, WEEK = 30 * DAY, 7 * DAY


def _pass(scene: Scene, scope: Scope = SYSTEM, **parts: Any) -> PruneCount:
    return scene.storage.retention.prune(scope, PrunePolicy(**({"runs": MONTH, "events": WEEK} | parts)))


def _all_passes(scene: Scene, **parts: Any) -> PruneCount:
    total = _pass(scene, **parts)
    while total.more:
        total += _pass(scene, **parts)
    return total


def _left(scene: Scene) -> set[str]:
    return {summary.run_id for summary in scene.runs.list_runs(SYSTEM, ListQuery(limit=1_000)).runs}


def _end(scene: Scene, run_id: str, status: RunStatus = RunStatus.DONE) -> None:
    scene.mutate(run_id, status=status)


def test_age_counts_from_the_end_and_only_ended_runs_go(scene: Scene) -> None:
    for run_id in ("long", "old", "waiting", "poisoned", "cancelled", "failed", "running"):
        scene.start(run_id, schedule=None if run_id in ("poisoned", "running") else IMMEDIATE)
    scene.mutate("waiting", status=RunStatus.WAITING, schedule=EXTERNAL)
    _end(scene, "old")
    _end(scene, "cancelled", RunStatus.CANCELLED)
    scene.clock.advance(2 * DAY)
    _end(scene, "failed", RunStatus.FAILED)
    scene.clock.advance(29 * DAY)
    _end(scene, "long")
    for _ in range(3):
        for lease in scene.scan().leases:
            scene.redeem(lease)
        scene.expire()
    halted = {poisoned.run_id for poisoned in scene.scan().poisoned}
    assert halted == {"poisoned", "running"}
    scene.runs.retry_poisoned_run(SYSTEM, "running")
    assert _all_passes(scene).runs == 2
    assert _left(scene) == {"long", "waiting", "poisoned", "failed", "running"}


def test_a_run_exactly_at_its_age_stays(scene: Scene) -> None:
    scene.start()
    _end(scene, "run-1")
    scene.clock.advance(MONTH)
    assert _pass(scene, events=None) == PruneCount()
    scene.clock.advance(timedelta(microseconds=1))
    assert _pass(scene, events=None) == PruneCount(runs=1, events=2)


def test_what_a_run_leaves_behind_goes_with_it(scene: Scene) -> None:
    scene.start(fields={"total": 1})
    _end(scene, "run-1")
    scene.clock.advance(2 * MONTH)
    _pass(scene)
    with pytest.raises(NotFound):
        scene.run()
    with pytest.raises(NotFound):
        scene.storage.events.list_events(SYSTEM, "run-1")
    assert scene.start().created


def test_a_pass_is_bounded_and_says_whether_there_is_more(scene: Scene) -> None:
    for number in range(5):
        scene.start(f"run-{number}")
        _end(scene, f"run-{number}")
        scene.clock.advance(1)
    scene.clock.advance(2 * MONTH)
    counts = [_pass(scene, events=None, batch=2) for _ in range(3)]
    assert [(count.runs, count.more) for count in counts] == [(2, True), (2, True), (1, False)]
    assert _left(scene) == set()


def test_the_earliest_end_goes_first(scene: Scene) -> None:
    for run_id in ("c", "a", "b"):
        scene.start(run_id)
        scene.clock.advance(1)
    for run_id in ("b", "c", "a"):
        _end(scene, run_id)
        scene.clock.advance(1)
    scene.clock.advance(2 * MONTH)
    _pass(scene, events=None, batch=1)
    assert _left(scene) == {"a", "c"}


def test_the_events_of_one_pass_are_bounded_too(scene: Scene) -> None:
    for run_id in ("a", "b", "c"):
        scene.start(run_id)
        scene.mutate(run_id, events=9, status=RunStatus.DONE)
        scene.clock.advance(1)
    scene.clock.advance(2 * MONTH)
    assert _pass(scene, events=None, event_batch=11) == PruneCount(runs=2, events=20, more=True)
    assert _pass(scene, events=None, event_batch=1) == PruneCount(runs=1, events=10)


def test_old_events_of_an_ended_run_go_and_the_rest_has_no_hole(scene: Scene) -> None:
    scene.start()
    token = scene.hold()
    scene.commit("run-1", token, schedule=RETAIN, events=4)
    scene.clock.advance(10 * DAY)
    scene.commit("run-1", token, status=RunStatus.DONE, events=2)
    assert _pass(scene) == PruneCount(events=5)
    page = scene.storage.events.list_events(SYSTEM, "run-1")
    assert [event.seq for event in page.events] == [6, 7]
    assert (page.oldest_available, page.latest_available, page.latest_committed, page.pruned) == (6, 7, 7, 5)
    assert _pass(scene) == PruneCount()


def test_when_all_events_are_gone_the_counter_still_tells_that_there_were_some(scene: Scene) -> None:
    scene.start("told")
    scene.start("silent", event_seq=0)
    _end(scene, "told")
    scene.mutate("silent", status=RunStatus.DONE, events=0)
    scene.clock.advance(WEEK + DAY)
    assert _pass(scene) == PruneCount(events=2)
    told, silent = (scene.storage.events.list_events(SYSTEM, run_id) for run_id in ("told", "silent"))
    assert (told.events, told.oldest_available, told.pruned) == ((), None, 2)
    assert (silent.events, silent.oldest_available, silent.pruned) == ((), None, 0)


def test_the_events_of_a_run_that_goes_on_stay_however_old(scene: Scene) -> None:
    scene.start("running")
    scene.start("waiting")
    scene.mutate("waiting", status=RunStatus.WAITING, schedule=EXTERNAL)
    scene.clock.advance(2 * MONTH)
    assert _pass(scene) == PruneCount()
    assert scene.storage.events.list_events(SYSTEM, "running").oldest_available == 1


def test_the_events_of_one_long_run_go_in_several_passes(scene: Scene) -> None:
    scene.start()
    scene.mutate("run-1", events=9, status=RunStatus.DONE)
    scene.clock.advance(WEEK + DAY)
    counts = [_pass(scene, event_batch=4) for _ in range(3)]
    assert [(count.events, count.more) for count in counts] == [(4, True), (4, True), (2, False)]


def test_a_dry_run_counts_everything_that_would_go_and_removes_nothing(scene: Scene) -> None:
    for number in range(5):
        scene.start(f"run-{number}")
        _end(scene, f"run-{number}")
    scene.clock.advance(25 * DAY)
    scene.start("long")
    scene.mutate("long", events=3)
    scene.clock.advance(8 * DAY)
    _end(scene, "long")
    expected = _pass(scene, batch=2, dry_run=True)
    assert expected == PruneCount(runs=5, events=10 + 4)
    assert _left(scene) == {"long", *(f"run-{number}" for number in range(5))}
    assert _all_passes(scene, batch=2) == expected


def test_without_a_retention_everything_is_kept(scene: Scene) -> None:
    scene.start()
    _end(scene, "run-1")
    scene.clock.advance(400 * DAY)
    for dry_run in (True, False):
        assert _pass(scene, runs=None, events=None, dry_run=dry_run) == PruneCount()
    assert _left(scene) == {"run-1"}


def test_a_start_key_is_free_again_once_its_run_is_pruned(scene: Scene) -> None:
    def start(run_id: str) -> tuple[str, bool]:
        started = scene.start(run_id, start_key="order-17", input_digest="d")
        return started.run.id, started.created

    assert start("first") == ("first", True)
    _end(scene, "first", RunStatus.CANCELLED)
    assert start("second") == ("first", False)
    scene.clock.advance(2 * MONTH)
    _pass(scene)
    assert start("third") == ("third", True)


def test_an_owner_prunes_only_what_is_its_own(scene: Scene) -> None:
    for tenant in (None, "acme", "bolt"):
        run_id = f"run-{tenant}"
        scene.start(run_id, tenant=tenant)
        _end(scene, run_id)
    scene.clock.advance(2 * MONTH)
    assert _pass(scene, Scope.of("acme"), dry_run=True).runs == 1
    assert _pass(scene, Scope.of("acme")).runs == 1
    assert _left(scene) == {"run-None", "run-bolt"}
    assert _pass(scene, TENANTLESS).runs == 1
    assert _left(scene) == {"run-bolt"}


class TestGraphVersions:
    @pytest.fixture
    def versions(self, scene: Scene) -> dict[str, GraphRef]:
        """Versions a to d of one graph; the latest is d, and run-1 refers to b."""
        refs = {letter: GraphRef(graph_id="order", graph_hash=letter * 64) for letter in "abcd"}
        for ref in refs.values():
            scene.publish(ref=ref)
            scene.clock.advance(1)
        scene.start(ref=refs["b"])
        scene.publish(ref=refs["d"])
        return refs

    def _kept(self, scene: Scene) -> set[str]:
        listed = scene.storage.graphs.list_graph_versions(TENANTLESS, "order").versions
        return {ref.graph_hash[0] for ref, _ in listed}

    def test_they_stay_unless_asked_for(self, scene: Scene, versions: dict[str, GraphRef]) -> None:
        scene.clock.advance(12 * MONTH)
        _all_passes(scene)
        assert self._kept(scene) == {"a", "b", "c", "d"}

    def test_old_unreferenced_ones_go_but_never_the_latest(self, scene: Scene, versions: dict[str, GraphRef]) -> None:
        scene.clock.advance(12 * MONTH)
        assert _pass(scene, graphs=MONTH, dry_run=True).graphs == 2
        assert _all_passes(scene, graphs=MONTH, batch=1).graphs == 2
        assert self._kept(scene) == {"b", "d"}

    def test_one_goes_once_its_last_run_has_gone(self, scene: Scene, versions: dict[str, GraphRef]) -> None:
        _end(scene, "run-1")
        scene.clock.advance(2 * MONTH)
        assert _pass(scene, graphs=MONTH, dry_run=True).graphs == 3
        assert _all_passes(scene, graphs=MONTH) == PruneCount(runs=1, events=2, graphs=3)
        assert self._kept(scene) == {"d"}

    def test_a_young_one_stays(self, scene: Scene, versions: dict[str, GraphRef]) -> None:
        scene.clock.advance(MONTH - DAY)
        assert _pass(scene, graphs=MONTH).graphs == 0
        assert self._kept(scene) == {"a", "b", "c", "d"}


@pytest.mark.parametrize(
    "parts", [{"runs": -DAY}, {"events": -DAY}, {"graphs": -DAY}, {"batch": 0}, {"event_batch": 0}]
)
def test_an_impossible_policy_is_refused(parts: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        PrunePolicy(**({"runs": None, "events": None} | parts))
