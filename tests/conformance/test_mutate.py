"""Serialised mutations: decided on the latest committed run, revoking any claim, or leaving everything as it is."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from support.builders import a_commit, a_decision, events_of, new_commit_id
from support.scene import RETAIN, Scene

from docket_celery.errors import InvalidMutation, NotFound, StaleFence
from docket_celery.run.document import Run, RunStatus
from docket_celery.run.moment import Appended, Replaced
from docket_celery.storage.contracts.values import SYSTEM, Commit, Mutated, MutationDecision, NoChange, Release


def _mutate(scene: Scene, mutation: Any, run_id: str = "run-1") -> Mutated:
    return scene.runs.mutate_run(SYSTEM, run_id, mutation, commit_id=new_commit_id())


def _refused(scene: Scene, decision: Commit) -> None:
    before = scene.info()
    with pytest.raises(InvalidMutation):
        _mutate(scene, lambda run, now: decision)
    assert scene.info() == before
    assert scene.storage.events.list_events(SYSTEM, "run-1").latest_available == before.run.event_seq


def test_a_mutation_is_given_the_latest_run_and_the_stores_clock(scene: Scene) -> None:
    scene.start(fields={"n": 1})
    committed = scene.commit("run-1", scene.hold(), fields={"n": 2})
    scene.clock.advance(5)
    seen: list[tuple[Run, datetime]] = []

    def mutation(run: Run, now: datetime) -> MutationDecision:
        seen.append((run, now))
        return NoChange()

    _mutate(scene, mutation)
    assert seen[-1] == (committed, scene.now)


def test_a_commit_decision_replaces_the_run_and_appends_its_events(scene: Scene) -> None:
    scene.start(fields={"n": 1, "log": ["a"]})
    scene.clock.advance(5)
    changes = (Replaced(name="n", value=2), Appended(name="log", items=("b",)))
    decision = a_decision(scene.run(), at=scene.now, fields={"n": 2, "log": ["a", "b"]}, events=2, changes=changes)
    mutated = _mutate(scene, lambda run, now: decision)
    assert mutated == Mutated(run=decision.run, changed=True, now=scene.now)
    assert scene.run() == decision.run
    assert scene.storage.events.list_events(SYSTEM, "run-1", after_seq=1).events == decision.events


def test_a_mutation_revokes_any_claim_and_wakes_the_run(scene: Scene) -> None:
    scene.start()
    token = scene.hold()
    scene.clock.advance(5)
    before = scene.run()
    scene.mutate("run-1")
    info = scene.info()
    assert (info.claimed_at, info.claim_redeemed, info.wake_at) == (None, False, scene.now)
    with pytest.raises(StaleFence):
        scene.runs.commit(SYSTEM, a_commit(before, token, at=scene.now))


def test_a_mutation_of_an_unclaimed_run_needs_no_token(scene: Scene) -> None:
    scene.start(status=RunStatus.WAITING)
    scene.mutate("run-1", fields={"approved": True})
    assert scene.info().view == "ready"
    assert scene.run().fields == {"approved": True}


def test_a_mutation_may_schedule_wait_or_end(scene: Scene) -> None:
    scene.start()
    at = scene.now + timedelta(hours=1)
    scene.mutate("run-1", schedule=Release(kind="at", at=at))
    assert scene.info().wake_at == at
    scene.mutate("run-1", status=RunStatus.WAITING)
    assert scene.info().wake_at is None
    scene.mutate("run-1", status=RunStatus.CANCELLED)
    assert scene.info().wake_at is None
    assert scene.run().finished_at == scene.now


def test_a_mutation_resets_counters_and_poison(scene: Scene) -> None:
    scene.start()
    scene.abandon("run-1", scene.hold())
    scene.clock.advance(30)
    scene.poison()
    scene.mutate("run-1")
    info = scene.info()
    assert (info.poisoned_at, info.poison_reason) == (None, None)
    assert (info.claim_attempts, info.claim_abandons, info.undelivered, info.abandon_reason) == (0, 0, 0, None)
    assert info.wake_at == scene.now


def test_no_change_touches_nothing_at_all(scene: Scene) -> None:
    scene.start()
    token = scene.hold()
    scene.clock.advance(5)
    before = scene.info()
    mutated = _mutate(scene, lambda run, now: NoChange())
    assert mutated == Mutated(run=before.run, changed=False, now=scene.now)
    assert scene.info() == before
    scene.commit("run-1", token)


def test_no_change_leaves_a_poisoned_run_poisoned(scene: Scene) -> None:
    scene.start()
    scene.poison()
    before = scene.info()
    _mutate(scene, lambda run, now: NoChange())
    assert scene.info() == before


def test_what_a_mutation_raises_is_passed_on_and_changes_nothing(scene: Scene) -> None:
    class Refused(Exception):
        pass

    def mutation(run: Run, now: datetime) -> MutationDecision:
        raise Refused("no such interrupt")

    scene.start()
    token = scene.hold()
    before = scene.info()
    with pytest.raises(Refused, match="no such interrupt"):
        _mutate(scene, mutation)
    assert scene.info() == before
    scene.commit("run-1", token)


def test_an_unknown_run_is_not_found_and_the_mutation_not_called(scene: Scene) -> None:
    called: list[Run] = []

    def mutation(run: Run, now: datetime) -> MutationDecision:
        called.append(run)
        return NoChange()

    with pytest.raises(NotFound):
        _mutate(scene, mutation, "run-absent")
    assert called == []


def test_a_mutation_must_release(scene: Scene) -> None:
    scene.start()
    scene.hold()
    _refused(scene, a_decision(scene.run(), at=scene.now, schedule=RETAIN))


@pytest.mark.parametrize("seq", [0, 1, 3])
def test_a_mutation_must_carry_exactly_the_next_sequence(scene: Scene, seq: int) -> None:
    scene.start()
    decision = a_decision(scene.run(), at=scene.now)
    _refused(scene, replace(decision, run=replace(decision.run, checkpoint_seq=seq)))


def test_a_mutation_must_keep_the_run_id(scene: Scene) -> None:
    scene.start()
    scene.start("run-2")
    decision = a_decision(scene.run("run-2"), at=scene.now)
    _refused(scene, decision)


def test_a_mutation_must_keep_the_graph_version(scene: Scene) -> None:
    scene.start()
    decision = a_decision(scene.run(), at=scene.now)
    _refused(scene, replace(decision, run=replace(decision.run, graph_hash="b2" * 32)))


def test_a_mutations_events_must_follow_the_stored_ones(scene: Scene) -> None:
    scene.start()
    decision = a_decision(scene.run(), at=scene.now, events=2)
    run = decision.run
    for events in (
        (),
        decision.events[:1],
        decision.events[::-1],
        events_of(run, 1),
        events_of(replace(run, id="x"), 2),
        tuple(replace(event, at=datetime(2026, 1, 1)) for event in decision.events),
    ):
        _refused(scene, replace(decision, events=events))


@pytest.mark.parametrize("kind", ["external", "terminal"])
def test_a_mutations_schedule_must_go_with_its_status(scene: Scene, kind: Any) -> None:
    scene.start()
    _refused(scene, a_decision(scene.run(), at=scene.now, schedule=Release(kind=kind)))


def test_a_mutations_changes_must_agree_with_its_run(scene: Scene) -> None:
    scene.start()
    decision = a_decision(scene.run(), at=scene.now, fields={"n": 1})
    _refused(scene, replace(decision, changes=(Replaced(name="n", value=1.0),)))


def test_an_ended_run_cannot_be_mutated_any_more(scene: Scene) -> None:
    scene.start()
    scene.commit("run-1", scene.hold(), status=RunStatus.DONE)
    _refused(scene, a_decision(scene.run(), at=scene.now))


def test_a_mutation_cannot_change_stored_values_by_reference(scene: Scene) -> None:
    scene.start(fields={"log": ["a"]})

    def mutation(run: Run, now: datetime) -> MutationDecision:
        run.fields["log"].append("b")
        return NoChange()

    _mutate(scene, mutation)
    assert scene.run().fields == {"log": ["a"]}
