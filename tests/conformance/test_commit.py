"""Commits: one fenced transition, all of it or nothing, in a fixed order of refusals."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from support.builders import EXTERNAL, IMMEDIATE, TERMINAL, TTL, a_commit, a_run, after, events_of
from support.clock import NOON
from support.scene import QUIETLY, RETAIN, Scene

from docket_celery.errors import InvalidCommit, NotFound, StaleFence
from docket_celery.run.document import Run, RunStatus
from docket_celery.run.moment import Appended, Replaced
from docket_celery.storage.contracts.values import QUIET, SYSTEM, CommitProposal, Committed, Release, Retain

MICROSECOND = timedelta(microseconds=1)


def _events(scene: Scene) -> list[int]:
    return [event.seq for event in scene.storage.events.list_events(SYSTEM, "run-1").events]


def _refused(scene: Scene, proposal: CommitProposal, error: type[Exception]) -> None:
    before, events = scene.info(), _events(scene)
    with pytest.raises(error):
        scene.runs.commit(SYSTEM, proposal)
    assert scene.info() == before
    assert _events(scene) == events


# -- success ----------------------------------------------------------------------------------------------------------


def test_a_commit_replaces_the_run_and_appends_its_events(scene: Scene) -> None:
    scene.start(fields={"a": 1, "b": 2})
    token = scene.hold()
    scene.clock.advance(3)
    proposal = a_commit(scene.run(), token, at=scene.now, fields={"b": 3}, events=2)
    committed = scene.runs.commit(SYSTEM, proposal)
    assert committed.now == scene.now
    assert scene.run() == proposal.run
    assert scene.run().fields == {"a": 1, "b": 3}
    assert scene.storage.events.list_events(SYSTEM, "run-1", after_seq=1).events == proposal.events


def test_a_commit_without_events_or_changes_is_a_commit(scene: Scene) -> None:
    scene.start(fields={"a": 1})
    committed = scene.commit("run-1", scene.hold(), events=0)
    assert committed.checkpoint_seq == 2
    assert scene.run() == committed


def test_an_append_adds_to_a_list_and_begins_a_missing_one(scene: Scene) -> None:
    scene.start(fields={"log": ["a"]})
    token = scene.hold()
    scene.commit(
        "run-1",
        token,
        schedule=RETAIN,
        fields={"log": ["a", "b"], "new": [1.0]},
        changes=(Appended(name="log", items=("b",)), Appended(name="new", items=(1.0,))),
    )
    scene.commit("run-1", token, fields={"log": ["a", "b", "c"]}, changes=(Appended(name="log", items=("c",)),))
    assert scene.run().fields == {"log": ["a", "b", "c"], "new": [1.0]}


def test_a_replaced_list_may_be_appended_to_afterwards(scene: Scene) -> None:
    scene.start(fields={"log": ["a"]})
    token = scene.hold()
    scene.commit(
        "run-1", token, schedule=RETAIN, fields={"log": ["a", "b"]}, changes=(Appended(name="log", items=("b",)),)
    )
    scene.commit("run-1", token, schedule=RETAIN, fields={"log": []})
    scene.commit("run-1", token, fields={"log": ["z"]}, changes=(Appended(name="log", items=("z",)),))
    assert scene.run().fields == {"log": ["z"]}


def test_a_field_may_change_its_type(scene: Scene) -> None:
    scene.start(fields={"n": 1})
    token = scene.hold()
    for value in (1.0, True, None, "1", [1], {"n": 1}, 1):
        scene.commit("run-1", token, schedule=RETAIN, fields={"n": value})
        assert repr(scene.run().fields["n"]) == repr(value)


@pytest.mark.parametrize("schedule", [RETAIN, QUIETLY], ids=["telling", "quiet"])
def test_a_commit_resets_all_counters(scene: Scene, schedule: Retain) -> None:
    scene.start()
    scene.lease()
    scene.expire()
    scene.abandon("run-1", scene.lease().claim_token)
    scene.clock.advance(30)
    token = scene.hold()
    info = scene.info()
    assert (info.claim_attempts, info.claim_abandons, info.undelivered) == (1, 1, 1)
    scene.commit("run-1", token, schedule=schedule)
    info = scene.info()
    assert (info.claim_attempts, info.claim_abandons, info.undelivered, info.abandon_reason) == (0, 0, 0, None)


def test_attempts_are_counted_anew_after_progress(scene: Scene) -> None:
    scene.start()
    for _ in range(5):
        token = scene.hold()
        scene.commit("run-1", token, schedule=RETAIN)
        scene.expire()
    assert scene.lease().claim_attempt == 1


# -- schedules --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", [RETAIN, QUIETLY], ids=["telling", "quiet"])
def test_retain_keeps_the_claim_and_leaves_no_wake(scene: Scene, schedule: Retain) -> None:
    scene.start()
    token = scene.hold()
    scene.commit("run-1", token, schedule=schedule)
    info = scene.info()
    assert (info.wake_at, info.claim_redeemed) == (None, True)
    assert info.claimed_at is not None
    scene.commit("run-1", token)


def test_retain_writes_the_claim_time_back_unless_it_is_older_than_a_third_of_the_ttl(scene: Scene) -> None:
    scene.start()
    token = scene.hold()
    claimed_at = scene.now
    scene.clock.advance(TTL / 3)
    proposal = a_commit(scene.run(), token, at=scene.now, schedule=Retain(ttl=TTL))
    assert scene.runs.commit(SYSTEM, proposal).claimed_at == claimed_at
    assert scene.info().claimed_at == claimed_at
    scene.clock.advance(MICROSECOND)
    proposal = a_commit(scene.run(), token, at=scene.now, schedule=Retain(ttl=TTL))
    assert scene.runs.commit(SYSTEM, proposal).claimed_at == scene.now
    assert scene.info().claimed_at == scene.now


@pytest.mark.parametrize("length", [1, 4])
def test_a_quiet_commit_of_a_young_claim_leaves_its_time_and_need_not_say_so(scene: Scene, length: int) -> None:
    scene.start(fields={"a": 1})
    token = scene.hold()
    claimed_at = scene.now
    scene.clock.advance(TTL / 3)
    proposal = a_commit(scene.run(), token, at=scene.now, schedule=QUIETLY, fields={"a": 2}, events=length)
    assert scene.runs.commit(SYSTEM, proposal) in (QUIET, Committed(now=scene.now, claimed_at=claimed_at))
    assert scene.run() == proposal.run
    assert scene.storage.events.list_events(SYSTEM, "run-1", after_seq=1).events == proposal.events
    assert scene.info().claimed_at == claimed_at


def test_a_quiet_commit_of_an_older_claim_refreshes_it_and_says_so(scene: Scene) -> None:
    scene.start()
    token = scene.hold()
    scene.clock.advance(TTL / 3 + MICROSECOND)
    proposal = a_commit(scene.run(), token, at=scene.now, schedule=QUIETLY)
    assert scene.runs.commit(SYSTEM, proposal) == Committed(now=scene.now, claimed_at=scene.now)
    assert scene.run() == proposal.run
    assert scene.info().claimed_at == scene.now


@pytest.mark.parametrize("wrong", ["token", "sequence", "events", "version", "run"])
def test_a_quiet_commit_is_refused_for_the_same_reasons(scene: Scene, wrong: str) -> None:
    before = scene.start().run
    token = scene.hold()
    proposal = a_commit(before, token, at=scene.now, schedule=QUIETLY)
    match wrong:
        case "token":
            _refused(scene, replace(proposal, claim_token="another"), StaleFence)
        case "sequence":
            later = a_commit(replace(before, checkpoint_seq=2), token, at=scene.now, schedule=QUIETLY)
            _refused(scene, later, StaleFence)
        case "events":
            later = a_commit(replace(before, event_seq=2), token, at=scene.now, schedule=QUIETLY)
            _refused(scene, later, InvalidCommit)
        case "version":
            later = a_commit(replace(before, graph_hash="b2" * 32), token, at=scene.now, schedule=QUIETLY)
            _refused(scene, later, InvalidCommit)
        case _:
            stranger = a_commit(replace(before, id="nobody"), token, at=scene.now, schedule=QUIETLY)
            _refused(scene, stranger, NotFound)


def test_an_immediate_release_wakes_at_the_stores_now(scene: Scene) -> None:
    scene.start()
    token = scene.hold()
    later = scene.clock.advance(5)
    proposal = a_commit(scene.run(), token, at=NOON, schedule=IMMEDIATE)
    assert scene.runs.commit(SYSTEM, proposal).claimed_at is None
    info = scene.info()
    assert (info.wake_at, info.claimed_at, info.claim_redeemed) == (later, None, False)


@pytest.mark.parametrize("seconds", [-60, 0, 60])
def test_a_timed_release_wakes_exactly_then_past_or_future(scene: Scene, seconds: int) -> None:
    scene.start()
    at = scene.now + timedelta(seconds=seconds)
    scene.commit("run-1", scene.hold(), schedule=Release(kind="at", at=at))
    assert (scene.info().wake_at, scene.info().claimed_at) == (at, None)


def test_an_external_release_leaves_neither_claim_nor_wake(scene: Scene) -> None:
    scene.start()
    scene.commit("run-1", scene.hold(), status=RunStatus.WAITING)
    assert (scene.info().wake_at, scene.info().claimed_at, scene.info().view) == (None, None, "waiting")


@pytest.mark.parametrize("status", [RunStatus.DONE, RunStatus.FAILED, RunStatus.CANCELLED])
def test_a_terminal_release_ends_the_run_for_good(scene: Scene, status: RunStatus) -> None:
    scene.start()
    token = scene.hold()
    ended = scene.commit("run-1", token, status=status)
    assert (scene.info().wake_at, scene.info().claimed_at) == (None, None)
    assert scene.run().finished_at == scene.now
    _refused(scene, a_commit(ended, token, at=scene.now), StaleFence)
    scene.clock.advance(TTL * 10)
    assert scene.scan().leases == ()


# -- refusals ---------------------------------------------------------------------------------------------------------

RUN = a_run()


def _with_events(first: int, last: int, events: Callable[[Run], tuple[Any, ...]]) -> CommitProposal:
    run = after(RUN, at=NOON, events=last - first + 1)
    return replace(a_commit(RUN, "t", at=NOON), run=run, events=events(run))


MALFORMED: dict[str, CommitProposal] = {
    "no token": a_commit(RUN, "", at=NOON),
    "no commit id": a_commit(RUN, "t", at=NOON, commit_id=""),
    "a sequence that stands still": a_commit(RUN, "t", at=NOON, run=replace(after(RUN, at=NOON), checkpoint_seq=1)),
    "a sequence that skips one": a_commit(RUN, "t", at=NOON, run=replace(after(RUN, at=NOON), checkpoint_seq=3)),
    "a doubled change": a_commit(
        RUN, "t", at=NOON, fields={"a": 1}, changes=(Replaced(name="a", value=1), Replaced(name="a", value=1))
    ),
    "a change that the run does not hold": a_commit(RUN, "t", at=NOON, changes=(Replaced(name="a", value=1),)),
    "a change of another value": a_commit(RUN, "t", at=NOON, fields={"a": 1}, changes=(Replaced(name="a", value=2),)),
    "a change of another type": a_commit(RUN, "t", at=NOON, fields={"a": 1}, changes=(Replaced(name="a", value=1.0),)),
    "an append to no list": a_commit(RUN, "t", at=NOON, fields={"a": 1}, changes=(Appended(name="a", items=(1,)),)),
    "an append of other items": a_commit(
        RUN, "t", at=NOON, fields={"a": [1]}, changes=(Appended(name="a", items=(2,)),)
    ),
    "an end without its time": a_commit(
        RUN, "t", at=NOON, schedule=TERMINAL, run=replace(after(RUN, at=NOON), status=RunStatus.DONE)
    ),
    "a time of an end that has not come": a_commit(
        RUN, "t", at=NOON, run=replace(after(RUN, at=NOON), finished_at=NOON)
    ),
    "a naive update time": a_commit(RUN, "t", at=datetime(2026, 1, 1)),
    "at without an instant": a_commit(RUN, "t", at=NOON, schedule=Release(kind="at")),
    "at a naive instant": a_commit(RUN, "t", at=NOON, schedule=Release(kind="at", at=datetime(2026, 1, 1))),
    "immediate with an instant": a_commit(RUN, "t", at=NOON, schedule=Release(kind="immediate", at=NOON)),
    "a missing event": _with_events(2, 4, lambda run: events_of(run, 3)[:1]),
    "an event hole": _with_events(2, 4, lambda run: events_of(run, 2)[::2]),
    "a wrong order of events": _with_events(2, 3, lambda run: events_of(run, 2)[::-1]),
    "more events than numbers": _with_events(2, 2, lambda run: (*events_of(run, 1), *events_of(run, 1))),
    "a naive time of an event": _with_events(
        2, 2, lambda run: (replace(events_of(run, 2)[0], at=datetime(2026, 1, 1)),)
    ),
    "another run's event": _with_events(2, 2, lambda run: events_of(replace(run, id="run-9"), 2)),
}


FORBIDDEN = [
    (status, schedule)
    for status, allowed in {
        RunStatus.RUNNING: ("retain", "immediate", "at"),
        RunStatus.WAITING: ("external",),
        RunStatus.DONE: ("terminal",),
        RunStatus.FAILED: ("terminal",),
        RunStatus.CANCELLED: ("terminal",),
    }.items()
    for name, schedule in {
        "retain": RETAIN,
        "immediate": IMMEDIATE,
        "at": Release(kind="at", at=NOON),
        "external": EXTERNAL,
        "terminal": TERMINAL,
    }.items()
    if name not in allowed
]


@pytest.mark.parametrize("malformed", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_proposal_that_contradicts_itself_is_refused(scene: Scene, malformed: CommitProposal) -> None:
    scene.start()
    token = scene.hold()
    _refused(scene, replace(malformed, claim_token=malformed.claim_token and token), InvalidCommit)
    scene.commit("run-1", token)


@pytest.mark.parametrize(("status", "schedule"), FORBIDDEN, ids=str)
def test_a_schedule_that_the_status_does_not_allow_is_refused(scene: Scene, status: RunStatus, schedule: Any) -> None:
    scene.start()
    token = scene.hold()
    _refused(scene, a_commit(scene.run(), token, at=scene.now, status=status, schedule=schedule), InvalidCommit)


@pytest.mark.parametrize("malformed", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_proposal_is_told_before_a_missing_run(scene: Scene, malformed: CommitProposal) -> None:
    with pytest.raises(InvalidCommit):
        scene.runs.commit(SYSTEM, malformed)


def test_an_unknown_run_is_told_before_a_stale_fence(scene: Scene) -> None:
    with pytest.raises(NotFound):
        scene.runs.commit(SYSTEM, a_commit(a_run("run-absent"), "token", at=scene.now))


def test_a_token_that_is_not_the_current_one_is_stale(scene: Scene) -> None:
    scene.start()
    lease = scene.lease()
    loser = scene.redeem(lease)
    scene.expire()
    scene.hold()
    for token in (lease.claim_token, loser, "none"):
        _refused(scene, a_commit(scene.run(), token, at=scene.now), StaleFence)


def test_a_run_without_a_claim_accepts_no_commit(scene: Scene) -> None:
    scene.start()
    token = scene.hold()
    scene.runs.release_claim("run-1", token)
    _refused(scene, a_commit(scene.run(), token, at=scene.now), StaleFence)


def test_a_sequence_that_has_moved_on_is_stale_even_under_the_right_token(scene: Scene) -> None:
    before = scene.start().run
    token = scene.hold()
    scene.commit("run-1", token, schedule=RETAIN)
    _refused(scene, a_commit(before, token, at=scene.now), StaleFence)


def test_a_commit_from_the_future_is_stale(scene: Scene) -> None:
    before = scene.start().run
    token = scene.hold()
    ahead = replace(before, checkpoint_seq=5)
    _refused(scene, a_commit(ahead, token, at=scene.now), StaleFence)


def test_events_that_do_not_follow_the_stored_ones_are_refused(scene: Scene) -> None:
    before = scene.start().run
    token = scene.hold()
    for event_seq in (0, 5):
        _refused(scene, a_commit(replace(before, event_seq=event_seq), token, at=scene.now), InvalidCommit)


def test_a_run_cannot_move_to_another_graph_version(scene: Scene) -> None:
    before = scene.start().run
    token = scene.hold()
    _refused(scene, a_commit(replace(before, graph_hash="b2" * 32), token, at=scene.now), InvalidCommit)
    _refused(scene, a_commit(replace(before, graph_id="refund"), token, at=scene.now), InvalidCommit)


# -- a repeat after a lost reply --------------------------------------------------------------------------------------


def test_a_quiet_commit_repeated_after_a_lost_reply_is_told_of_its_claim(scene: Scene) -> None:
    scene.start()
    token = scene.hold()
    proposal = a_commit(scene.run(), token, at=scene.now, schedule=QUIETLY)
    scene.runs.commit(SYSTEM, proposal)
    before, events = scene.info(), _events(scene)
    assert scene.runs.commit(SYSTEM, proposal) == Committed(now=scene.now, claimed_at=scene.now)
    assert scene.info() == before
    assert _events(scene) == events


@pytest.mark.parametrize("schedule", [RETAIN, IMMEDIATE], ids=["retain", "release"])
def test_a_commit_repeated_after_a_lost_reply_has_succeeded_once(scene: Scene, schedule: Any) -> None:
    scene.start()
    token = scene.hold()
    proposal = a_commit(scene.run(), token, at=scene.now, schedule=schedule)
    first = scene.runs.commit(SYSTEM, proposal)
    before, events = scene.info(), _events(scene)
    assert scene.runs.commit(SYSTEM, proposal) == first
    assert scene.info() == before
    assert _events(scene) == events


def test_a_repeat_is_recognised_after_another_has_claimed_the_run(scene: Scene) -> None:
    scene.start()
    proposal = a_commit(scene.run(), scene.hold(), at=scene.now)
    scene.runs.commit(SYSTEM, proposal)
    scene.hold()
    before = scene.info()
    scene.runs.commit(SYSTEM, proposal)
    assert scene.info() == before


def test_an_equal_commit_of_a_thief_is_not_ones_own(scene: Scene) -> None:
    scene.start()
    before = scene.run()
    victim = scene.hold()
    mine = a_commit(before, victim, at=scene.now)
    scene.expire()
    thief = scene.hold()
    scene.runs.commit(SYSTEM, replace(mine, claim_token=thief, commit_id="thiefs-own"))
    _refused(scene, mine, StaleFence)


def test_ones_own_commit_is_not_recognised_once_the_run_has_gone_on(scene: Scene) -> None:
    scene.start()
    token = scene.hold()
    proposal = a_commit(scene.run(), token, at=scene.now, schedule=RETAIN)
    scene.runs.commit(SYSTEM, proposal)
    scene.commit("run-1", token, schedule=RETAIN)
    _refused(scene, proposal, StaleFence)


def test_a_committed_value_cannot_be_changed_through_the_proposal(scene: Scene) -> None:
    scene.start()
    log = ["a"]
    scene.commit("run-1", scene.hold(), fields={"log": log})
    log.append("b")
    assert scene.run().fields == {"log": ["a"]}
