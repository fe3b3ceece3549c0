"""Nudges: the first of a spell at once, the last one never swallowed, and few of them however many ask."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from support.forking import forked_while_held
from support.threadless import no_threads

from docket_celery.worker.nudges import CROWD, LONGEST, SHORTEST, Nudges, Windows, flush_all


class Time:
    """A monotonic clock that rings the alarms set on it as it moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.alarms: list[Alarm] = []

    def monotonic(self) -> float:
        return self.now

    def later(self, seconds: float, call: Callable[[], None]) -> Alarm:
        assert seconds > 0
        self.alarms.append(Alarm(self.now + seconds, call))
        return self.alarms[-1]

    def advance(self, seconds: float) -> None:
        until = self.now + seconds
        while due := [alarm for alarm in self.alarms if alarm.call is not None and alarm.at <= until]:
            first = min(due, key=lambda alarm: alarm.at)
            self.now = max(self.now, first.at)
            call, first.call = first.call, None
            assert call is not None
            call()
        self.now = until


class Alarm:
    def __init__(self, at: float, call: Callable[[], None]) -> None:
        self.at = at
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class Rig:
    def __init__(self) -> None:
        self.time = Time()
        self.sent: list[float] = []
        self.nudges = Nudges(
            lambda: self.sent.append(self.time.now), monotonic=self.time.monotonic, later=self.time.later
        )


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_the_first_nudge_after_a_quiet_spell_goes_out_at_once(rig: Rig) -> None:
    rig.nudges.ask()
    rig.time.advance(SHORTEST)
    rig.nudges.ask()
    assert rig.sent == [100.0, 100.0 + SHORTEST]


def test_what_falls_into_a_window_is_answered_once_at_its_end(rig: Rig) -> None:
    for _ in range(5):
        rig.nudges.ask()
    assert rig.sent == [100.0]
    rig.time.advance(10.0)
    assert rig.sent == pytest.approx([100.0, 100.0 + SHORTEST])


def test_nothing_is_sent_at_the_end_of_a_window_that_nobody_asked_in(rig: Rig) -> None:
    rig.nudges.ask()
    rig.time.advance(10.0)
    assert rig.sent == [100.0]


def test_ten_thousand_starts_in_ten_seconds_make_a_handful_of_nudges_and_the_last_one_is_answered(rig: Rig) -> None:
    for _ in range(10_000):
        rig.nudges.ask()
        rig.time.advance(0.001)
    last_start = rig.time.now
    rig.time.advance(10.0)
    assert len(rig.sent) <= 16
    assert last_start <= rig.sent[-1] <= last_start + LONGEST


def test_a_few_starts_in_a_second_are_passed_on_within_the_shortest_window(rig: Rig) -> None:
    asked: list[float] = []
    for _ in range(100):
        asked.append(rig.time.now)
        rig.nudges.ask()
        rig.time.advance(SHORTEST / 3)
    rig.time.advance(SHORTEST)
    for instant in asked:
        assert any(instant <= sent <= instant + SHORTEST + 1e-6 for sent in rig.sent)


def test_a_quiet_spell_makes_windows_short_again(rig: Rig) -> None:
    for _ in range(CROWD + 2):
        rig.nudges.ask()
    rig.time.advance(SHORTEST * 5)
    del rig.sent[:]
    rig.nudges.ask()
    rig.nudges.ask()
    rig.time.advance(SHORTEST)
    assert len(rig.sent) == 2


def test_a_nudge_for_later_comes_at_its_time_and_the_earliest_wins(rig: Rig) -> None:
    rig.nudges.ask(after=0.8)
    rig.nudges.ask(after=0.3)
    rig.nudges.ask(after=0.5)
    rig.time.advance(0.299)
    assert rig.sent == []
    rig.time.advance(5.0)
    assert rig.sent == pytest.approx([100.3])


def test_a_nudge_for_later_does_not_swallow_one_for_now(rig: Rig) -> None:
    rig.nudges.ask(after=0.8)
    rig.nudges.ask()
    rig.time.advance(1.0)
    assert rig.sent == pytest.approx([100.0, 100.8])


def test_what_is_left_for_later_is_sent_when_the_process_ends(rig: Rig) -> None:
    rig.nudges.ask()
    rig.nudges.ask()
    flush_all()
    assert rig.sent == [100.0, 100.0]
    rig.time.advance(1.0)
    flush_all()
    assert rig.sent == [100.0, 100.0]


def test_an_alarm_that_rings_too_late_to_be_cancelled_sends_nothing(rig: Rig) -> None:
    rig.nudges.ask(after=0.8)
    stale = rig.time.alarms[0].call
    rig.nudges.ask(after=0.3)
    assert stale is not None
    stale()
    assert rig.sent == []
    rig.time.advance(0.3)
    assert rig.sent == pytest.approx([100.3])


def test_a_nudge_that_no_thread_can_be_had_for_is_left_to_the_tick() -> None:
    sent: list[int] = []
    nudges = Nudges(lambda: sent.append(1), monotonic=time.monotonic)
    with no_threads():
        nudges.ask(after=0.01)
    assert sent == []
    nudges.flush()
    nudges.ask()
    assert sent == [1]


@pytest.mark.parametrize("apart", [0.001, 0.03])
def test_a_backlog_of_nudges_is_answered_by_few_scans_and_the_last_of_them_is_not_forgotten(apart: float) -> None:
    time = Time()
    windows = Windows(time.monotonic, crowd=1)
    waits = []
    for _ in range(300):
        waits.append(windows.enter())
        time.advance(apart)
    assert waits.count(0) <= 6 + 300 * apart / LONGEST
    assert waits[-1] > 0
    time.advance(waits[-1])
    assert windows.enter() == 0


@pytest.mark.parametrize("apart", [0.02, 0.1, 0.3, 0.7])
def test_nudges_that_are_worth_it_wait_for_no_more_than_a_moment(apart: float) -> None:
    """Also where each comes as the answer to the one before, and after a crowd that came in vain."""
    time = Time()
    windows = Windows(time.monotonic, crowd=1)
    for _ in range(300):
        windows.enter()
        time.advance(0.03)
    waits = []
    for _ in range(30):
        waits.append(wait := windows.enter())
        if wait:
            time.advance(wait)
            assert windows.enter() == 0
        windows.shorten()
        time.advance(apart)
    assert waits[0] <= LONGEST
    assert max(waits[1:]) <= SHORTEST


def test_nudges_that_come_now_and_then_are_all_answered_at_once() -> None:
    time = Time()
    windows = Windows(time.monotonic, crowd=1)
    for _ in range(20):
        assert windows.enter() == 0
        time.advance(SHORTEST)


def test_a_forked_process_ends_without_sending_what_its_parent_has_set_for_later() -> None:
    rig = Rig()
    rig.nudges.ask(after=5.0)

    def end() -> None:
        flush_all()
        assert rig.sent == []

    assert forked_while_held(rig.nudges._lock, end) == 0
    flush_all()
    assert len(rig.sent) == 1
