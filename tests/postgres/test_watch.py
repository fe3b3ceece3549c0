"""Operations that take far too long are given up, by sessions made up for it."""

from __future__ import annotations

import threading

import pytest
from support.clock import eventually

from docket_celery.storage.postgres.watch import Watch


class Line:
    """A session that notes what is done to it."""

    def __init__(self, *, can_be_told: bool = True) -> None:
        self._can_be_told = can_be_told
        self.done: list[str] = []

    def cancel_statement(self) -> bool:
        self.done.append("cancel")
        return self._can_be_told

    def cut(self) -> None:
        self.done.append("cut")


class Hands:
    """A clock that is moved by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Hands:
    return Hands()


@pytest.fixture
def watch(clock: Hands) -> Watch:
    return Watch(longest=90.0, interval=3_600.0, monotonic=clock)


def test_a_session_in_use_for_too_long_is_cancelled_and_cut_once(watch: Watch, clock: Hands) -> None:
    early, late = Line(), Line()
    watch.begin(early)
    clock.now = 10.0
    watch.begin(late)
    clock.now = 90.0
    watch.look()
    assert early.done == []
    clock.now = 95.0
    watch.look()
    watch.look()
    assert (early.done, late.done) == (["cancel", "cut"], [])


def test_a_session_that_was_given_back_is_left_alone(watch: Watch, clock: Hands) -> None:
    line = Line()
    watch.begin(line)
    watch.end(line)
    clock.now = 1_000.0
    watch.look()
    assert line.done == []


def test_a_session_that_its_owner_gave_back_when_cancelled_is_not_cut_from_its_next_one(
    watch: Watch, clock: Hands
) -> None:
    class Answering(Line):
        def cancel_statement(self) -> bool:
            super().cancel_statement()
            for line in lines:
                watch.end(line)
                watch.begin(line)
            return True

    lines = [Answering(), Answering()]
    for line in lines:
        watch.begin(line)
    clock.now = 91.0
    watch.look()
    assert [line.done for line in lines] == [["cancel"], []]


def test_a_server_that_cannot_be_told_is_asked_once_for_all_sessions(watch: Watch, clock: Hands) -> None:
    """Each try may take seconds, while the next session's owner waits."""
    lines = [Line(can_be_told=False) for _ in range(3)]
    for line in lines:
        watch.begin(line)
    clock.now = 91.0
    watch.look()
    assert [line.done for line in lines] == [["cancel", "cut"], ["cut"], ["cut"]]


def test_one_thread_looks_by_itself(clock: Hands) -> None:
    before = set(threading.enumerate())
    watch = Watch(longest=90.0, interval=0.01, monotonic=clock)
    line = Line()
    watch.begin(line)
    clock.now = 91.0
    watch.start()
    watch.start()
    eventually(lambda: line.done == ["cancel", "cut"])
    (thread,) = [thread for thread in set(threading.enumerate()) - before if thread.name == "docket-watch"]
    assert thread.daemon


def test_a_forked_child_leaves_its_parents_sessions_alone(watch: Watch, clock: Hands) -> None:
    line = Line()
    watch.begin(line)
    clock.now = 91.0
    watch.forget()
    watch.look()
    assert line.done == []
