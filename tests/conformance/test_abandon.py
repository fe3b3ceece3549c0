"""Abandoning: a claim whose vehicle could not begin is handed back, counted apart, pushed back, and bounded."""

from __future__ import annotations

from datetime import timedelta

import pytest
from support.builders import an_abandon
from support.scene import RETAIN, Scene

from docket_celery.errors import InvalidInput
from docket_celery.run.document import RunStatus
from docket_celery.storage.contracts.claims import Backoff
from docket_celery.storage.contracts.values import SYSTEM

DELAY = timedelta(seconds=30)
BACKOFF = Backoff(base=timedelta(seconds=30), cap=timedelta(hours=1))


def test_an_abandon_clears_the_claim_and_schedules_the_next_wake(scene: Scene) -> None:
    scene.start()
    token = scene.hold()
    later = scene.clock.advance(4)
    assert scene.abandon("run-1", token) == "rescheduled"
    info = scene.info()
    assert (info.claimed_at, info.claim_redeemed, info.wake_at) == (None, False, later + DELAY)
    assert (info.claim_attempts, info.claim_abandons) == (0, 1)
    assert info.abandon_reason == "node proj.tasks.charge is not known here"


def test_a_pinned_now_dates_the_wake(scene: Scene) -> None:
    scene.start()
    pinned = scene.now + timedelta(minutes=5)
    scene.abandon("run-1", scene.hold(), now=pinned)
    assert scene.info().wake_at == pinned + DELAY


def test_an_abandon_of_a_direct_claim_takes_its_attempt_back(scene: Scene) -> None:
    scene.start()
    scene.abandon("run-1", scene.lease(delivery="direct").claim_token)
    assert scene.info().claim_attempts == 0


def test_an_abandon_takes_back_only_its_own_attempt(scene: Scene) -> None:
    scene.start()
    scene.runs.release_claim("run-1", scene.hold())
    scene.abandon("run-1", scene.hold())
    assert scene.info().claim_attempts == 1


def test_an_abandoned_lease_that_was_not_redeemed_has_no_attempt_to_take_back(scene: Scene) -> None:
    scene.start()
    scene.runs.release_claim("run-1", scene.hold())
    scene.abandon("run-1", scene.lease().claim_token)
    assert (scene.info().claim_attempts, scene.info().claim_abandons) == (1, 1)


def test_the_count_never_falls_below_zero(scene: Scene) -> None:
    scene.start()
    token = scene.hold()
    scene.commit("run-1", token, schedule=RETAIN)
    scene.abandon("run-1", token, seq=2)
    assert scene.info().claim_attempts == 0


def test_abandons_never_use_up_the_attempts(scene: Scene) -> None:
    scene.start()
    for _ in range(10):
        assert scene.abandon("run-1", scene.hold(), max_claim_abandons=100) == "rescheduled"
        scene.clock.advance(DELAY)
    assert scene.lease().claim_attempt == 1


def test_an_abandon_beyond_the_maximum_poisons(scene: Scene) -> None:
    scene.start()
    for _ in range(2):
        assert scene.abandon("run-1", scene.hold()) == "rescheduled"
        scene.clock.advance(DELAY)
    assert scene.abandon("run-1", scene.hold()) == "poisoned"
    info = scene.info()
    assert (info.poisoned_at, info.poison_reason) == (scene.now, "max_claim_abandons_exceeded")
    assert (info.wake_at, info.claimed_at, info.claim_redeemed) == (None, None, False)
    assert (info.claim_attempts, info.claim_abandons) == (0, 3)
    assert info.abandon_reason == "node proj.tasks.charge is not known here"


def test_an_abandon_touches_neither_document_nor_sequence_nor_update_time(scene: Scene) -> None:
    before = scene.start(fields={"n": 1}).run
    token = scene.hold()
    scene.clock.advance(5)
    scene.abandon("run-1", token)
    assert scene.run() == before
    assert len(scene.storage.events.list_events(SYSTEM, "run-1").events) == 1


def test_an_abandon_that_does_not_poison_never_poisons(scene: Scene) -> None:
    scene.start()
    for count in range(1, 8):
        assert scene.abandon("run-1", scene.hold(), max_claim_abandons=1, poisoning=False) == "rescheduled"
        assert scene.info().claim_abandons == count
        scene.clock.advance(DELAY)


def test_without_a_backoff_a_non_poisoning_abandon_waits_its_delay(scene: Scene) -> None:
    scene.start()
    scene.abandon("run-1", scene.hold(), poisoning=False)
    assert scene.info().wake_at == scene.now + DELAY


def test_the_backoff_doubles_with_each_stored_abandon_up_to_its_cap(scene: Scene) -> None:
    scene.start()
    waits = []
    for _ in range(10):
        scene.abandon("run-1", scene.hold(), poisoning=False, backoff=BACKOFF)
        wake_at = scene.info().wake_at
        assert wake_at is not None
        waits.append((wake_at - scene.now).total_seconds())
        scene.clock.advance(wake_at - scene.now)
    assert waits == [30, 60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]


def test_the_backoff_saturates_however_often_a_run_was_abandoned(scene: Scene) -> None:
    scene.start()
    short = Backoff(base=timedelta(microseconds=1), cap=timedelta(seconds=1))
    for _ in range(70):
        scene.abandon("run-1", scene.hold(), poisoning=False, backoff=short)
        scene.clock.advance(1)
    token = scene.hold()
    scene.abandon("run-1", token, poisoning=False, backoff=BACKOFF)
    assert scene.info().wake_at == scene.now + BACKOFF.cap


def test_poisoning_and_other_abandons_share_one_count(scene: Scene) -> None:
    scene.start()
    for _ in range(2):
        scene.abandon("run-1", scene.hold(), poisoning=False)
        scene.clock.advance(DELAY)
    assert scene.abandon("run-1", scene.hold()) == "poisoned"


def test_a_commit_resets_the_abandons_and_their_reason(scene: Scene) -> None:
    scene.start()
    scene.abandon("run-1", scene.hold())
    scene.clock.advance(DELAY)
    scene.commit("run-1", scene.hold())
    assert (scene.info().claim_abandons, scene.info().abandon_reason) == (0, None)


def _stale(scene: Scene, token: str, run_id: str = "run-1", seq: int = 1) -> None:
    before = scene.info()
    assert scene.runs.abandon_claim(run_id, token, an_abandon(seq, max_claim_abandons=0)) == "stale"
    assert scene.info() == before


def test_a_losers_abandon_never_disturbs_the_winner(scene: Scene) -> None:
    scene.start()
    lease = scene.lease()
    loser = scene.redeem(lease)
    scene.expire()
    scene.hold()
    _stale(scene, loser)
    _stale(scene, lease.claim_token)


def test_an_abandon_after_a_commit_is_stale_even_under_the_same_token(scene: Scene) -> None:
    scene.start()
    token = scene.hold()
    scene.commit("run-1", token, schedule=RETAIN)
    _stale(scene, token, seq=1)


def test_an_abandon_after_a_mutation_is_stale(scene: Scene) -> None:
    scene.start()
    token = scene.hold()
    scene.mutate("run-1")
    _stale(scene, token)
    _stale(scene, token, seq=2)


def test_an_abandon_after_the_end_is_stale(scene: Scene) -> None:
    scene.start()
    token = scene.hold()
    scene.commit("run-1", token, status=RunStatus.DONE)
    _stale(scene, token, seq=2)


def test_an_abandon_of_an_unknown_run_is_stale(scene: Scene) -> None:
    scene.start()
    _stale(scene, "token", run_id="run-absent")


def test_a_negative_delay_is_refused() -> None:
    with pytest.raises(InvalidInput):
        an_abandon(delay=timedelta(seconds=-1))
