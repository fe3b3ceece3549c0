"""What only the reference store promises: it checks its producers, stands alone, and serialises under one lock."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.builders import a_commit, a_decision, a_run, a_scan, an_initial, new_commit_id
from support.scene import Scene

from docket_celery.errors import EventConflict, InvalidCommit, InvalidInput, InvalidMutation
from docket_celery.run.moment import Appended, Change, Replaced
from docket_celery.storage import memory
from docket_celery.storage.contracts.values import SYSTEM, TENANTLESS, Release
from docket_celery.storage.memory.state import State
from docket_celery.testing import ManualClock, SequentialIds

ROOT = Path(__file__).parents[3]


@pytest.fixture
def state(clock: ManualClock, ids: SequentialIds) -> State:
    return State(clock=clock, ids=ids)


@pytest.fixture
def scene(state: State, clock: ManualClock, ids: SequentialIds) -> Scene:
    return Scene(memory.of_state(state), clock, ids)


DISHONEST: dict[str, tuple[dict[str, object], tuple[Change, ...]]] = {
    "a change left out": ({"n": 2}, ()),
    "another field changed unsaid": ({"n": 2, "log": []}, (Replaced(name="n", value=2),)),
    "an append that replaces": ({"log": ["z", "b"]}, (Appended(name="log", items=("b",)),)),
    "an append of half the new items": ({"log": ["a", "b", "c"]}, (Appended(name="log", items=("c",)),)),
    "an append where a text was": ({"text": ["x", "b"]}, (Appended(name="text", items=("b",)),)),
}


@pytest.mark.parametrize(("fields", "changes"), DISHONEST.values(), ids=DISHONEST.keys())
def test_changes_that_do_not_lead_to_the_proposed_fields_are_refused(
    scene: Scene, fields: dict[str, object], changes: tuple[Change, ...]
) -> None:
    before = scene.start(fields={"n": 1, "log": ["a"], "text": "x"}).run
    decision = a_decision(before, at=scene.now, fields=fields, changes=changes)
    with pytest.raises(InvalidMutation):
        scene.runs.mutate_run(SYSTEM, "run-1", lambda run, now: decision, commit_id=new_commit_id())
    token = scene.hold()
    with pytest.raises(InvalidCommit):
        scene.runs.commit(SYSTEM, a_commit(before, token, at=scene.now, fields=fields, changes=changes))
    assert scene.run() == before
    assert len(scene.storage.events.list_events(SYSTEM, "run-1").events) == 1


def test_a_field_never_vanishes(scene: Scene) -> None:
    before = scene.start(fields={"n": 1}).run
    token = scene.hold()
    proposal = a_commit(before, token, at=scene.now)
    proposal.run.fields.pop("n")  # type: ignore[attr-defined]
    with pytest.raises(InvalidCommit):
        scene.runs.commit(SYSTEM, proposal)


@pytest.mark.parametrize("consumed", [0, 1])
def test_a_release_that_leaves_inbox_entries_behind_wakes_at_once(scene: Scene, state: State, consumed: int) -> None:
    at = scene.now + timedelta(hours=1)
    scene.start()
    token = scene.hold()
    state.runs["run-1"].inbox_seq = 1
    scene.commit("run-1", token, schedule=Release(kind="at", at=at), inbox_seq=consumed)
    assert scene.info().wake_at == (at if consumed else scene.now)


def test_a_different_event_under_a_sequence_that_is_taken_rolls_all_back(scene: Scene, state: State) -> None:
    before = scene.start().run
    token = scene.hold()
    foreign = replace(state.runs["run-1"].events[0], seq=2)
    state.runs["run-1"].events.append(foreign)
    with pytest.raises(EventConflict):
        scene.commit("run-1", token)
    assert scene.run() == before
    assert scene.info().claimed_at is not None


def test_threads_never_share_a_claim() -> None:
    storage = memory.open_storage()
    scene = Scene(storage, ManualClock())
    for number in range(60):
        scene.start(f"run-{number:02}")
    claim: Callable[[int], list[str]] = lambda _: [  # noqa: E731
        lease.run_id for lease in storage.runs.claim_due(a_scan(limit=3)).leases
    ]
    with ThreadPoolExecutor(8) as pool:
        claimed = [run_id for batch in pool.map(claim, range(40)) for run_id in batch]
    assert sorted(claimed) == [f"run-{number:02}" for number in range(60)]


def test_a_run_cannot_join_a_transaction_of_a_database_that_is_not_there(scene: Scene) -> None:
    scene.publish()
    with pytest.raises(InvalidInput):
        scene.runs.insert_run(TENANTLESS, an_initial(a_run()), connection=object())


def test_stores_of_one_process_know_nothing_of_each_other() -> None:
    first, second = (Scene(memory.open_storage(), ManualClock()) for _ in range(2))
    first.start("run-1")
    assert second.start("run-1").created


def test_the_reference_store_needs_no_database_driver() -> None:
    program = "import sys; import docket_celery.storage.memory; print([m for m in sys.modules if 'psycopg' in m])"
    found = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == "[]"
