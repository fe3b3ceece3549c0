"""Who carries out which attempt of a superstep, and until when; time is a number here."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from support.attempts import attempt

from docket_celery.executors.overdue import Helper
from docket_celery.executors.round import Begun, Round
from docket_celery.runtime.executor import Attempt, NotBegun, Raised, Returned, is_timeout

WIDTH = 3
GRACE = 1.0
LIMIT = 10.0


class Time:
    """Monotonic seconds, as a test sets them."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


def plain(count: int, timeout: float | None = LIMIT) -> list[Attempt]:
    return [attempt(lambda: None, timeout=timeout) for _ in range(count)]


def coroutines(count: int) -> list[Attempt]:
    async def waits() -> None:
        await asyncio.Event().wait()

    return [attempt(waits, timeout=LIMIT) for _ in range(count)]


def round_of(attempts: Sequence[Attempt], time: Time) -> Round:
    return Round(attempts, time, width=WIDTH, grace=GRACE)


def indices(share: list[Begun]) -> list[int]:
    return [index for index, _ in share]


def end(round: Round, share: list[Begun]) -> None:
    for index, _ in share:
        round.report(index, Returned(value=index))


def test_a_helper_that_is_quick_carries_out_everything(time: Time) -> None:
    round = round_of(plain(5), time)
    (helper,) = round.advance()
    while share := round.take(helper):
        end(round, share)
        assert round.advance() == []
    assert round.is_over
    assert round.results == [Returned(value=index) for index in range(5)]
    assert round.close() == set()


def test_nobody_joins_the_first_helper_before_the_grace_is_over(time: Time) -> None:
    round = round_of(plain(5), time)
    (helper,) = round.advance()
    round.take(helper)
    assert round.next_look() == 100.0 + GRACE
    time.now += GRACE / 2
    assert round.advance() == []


def test_after_the_grace_there_are_as_many_helpers_as_allowed(time: Time) -> None:
    round = round_of(plain(5), time)
    (first,) = round.advance()
    assert indices(round.take(first)) == [0]
    time.now += GRACE
    others = round.advance()
    assert len(others) == WIDTH - 1
    assert [indices(round.take(helper)) for helper in others] == [[1], [2]]
    assert round.advance() == []


def test_there_are_no_more_helpers_than_attempts_for_them(time: Time) -> None:
    round = round_of(plain(2), time)
    round.advance()
    time.now += GRACE
    assert len(round.advance()) == 1
    assert round.advance() == []


def test_a_helper_that_has_not_come_yet_is_enough_for_one_attempt(time: Time) -> None:
    round = round_of(plain(1), time)
    round.advance()
    time.now += GRACE
    assert round.advance() == []
    assert round.next_look() == time.now + LIMIT


def test_each_attempt_has_its_own_deadline_from_its_own_begin(time: Time) -> None:
    round = round_of(plain(2), time)
    (helper,) = round.advance()
    ((_, first),) = share = round.take(helper)
    time.now += 7.0
    end(round, share)
    ((_, second),) = round.take(helper)
    assert first.deadline == 110.0
    assert second.deadline == 117.0


def test_a_look_comes_in_time_for_a_sibling_that_begins_unseen(time: Time) -> None:
    round = round_of([*plain(1, timeout=None), *plain(1, timeout=0.5), *plain(1, timeout=50.0)], time)
    (helper,) = round.advance()
    round.take(helper)
    assert round.next_look() == 100.5


def test_without_limits_there_is_nothing_to_look_for(time: Time) -> None:
    round = round_of(plain(1, timeout=None), time)
    (helper,) = round.advance()
    round.take(helper)
    assert round.next_look() is None


def test_an_overdue_attempt_makes_room_for_one_that_waits(time: Time) -> None:
    round = round_of(plain(4), time)
    (first,) = round.advance()
    round.take(first)
    time.now += GRACE
    for helper in round.advance():
        round.take(helper)
    assert round.advance() == []
    time.now += LIMIT - GRACE
    (replacement,) = round.advance()
    assert indices(round.take(replacement)) == [3]


def test_a_result_that_comes_after_the_timeout_is_void(time: Time) -> None:
    round = round_of(plain(1), time)
    (helper,) = round.advance()
    share = round.take(helper)
    time.now += LIMIT
    round.advance()
    end(round, share)
    assert is_timeout(round.results[0])


def test_a_helper_that_was_overdue_is_not_needed_while_another_is_in_its_place(time: Time) -> None:
    round = Round(plain(3), time, width=1, grace=GRACE)
    (overdue,) = round.advance()
    round.take(overdue)
    time.now += LIMIT
    (replacement,) = round.advance()
    round.take(replacement)
    assert round.take(overdue) == []
    assert round.close() == {replacement}


def test_a_helper_that_was_overdue_goes_on_where_there_is_room(time: Time) -> None:
    round = round_of(plain(2), time)
    (overdue,) = round.advance()
    round.take(overdue)
    time.now += LIMIT
    (replacement,) = round.advance()
    assert indices(round.take(overdue)) == [1]
    assert round.take(replacement) == []
    assert round.close() == {overdue}


def test_who_is_left_behind_is_known_until_its_code_ends(time: Time) -> None:
    round = round_of(plain(1), time)
    (helper,) = round.advance()
    round.take(helper)
    time.now += LIMIT
    round.advance()
    assert round.is_over
    assert round.close() == {helper}
    assert round.take(helper) == []
    assert round.close() == set()


def test_a_round_that_is_cut_short_begins_nothing_more(time: Time) -> None:
    round = round_of(plain(3), time)
    (helper,) = round.advance()
    share = round.take(helper)
    assert round.close() == {helper}
    end(round, share)
    assert round.take(helper) == []
    assert round.take(Helper()) == []


def test_what_was_not_begun_is_a_result_too(time: Time) -> None:
    round = round_of(plain(1), time)
    (helper,) = round.advance()
    round.take(helper)
    round.report(0, NotBegun())
    assert round.is_over


def test_coroutines_are_one_share_before_the_others(time: Time) -> None:
    round = round_of([*plain(1), *coroutines(2)], time)
    (first,) = round.advance()
    assert indices(round.take(first)) == [1, 2]
    time.now += GRACE
    (second,) = round.advance()
    assert indices(round.take(second)) == [0]


def test_many_coroutines_are_several_shares(time: Time) -> None:
    round = round_of(coroutines(WIDTH + 1), time)
    (helper,) = round.advance()
    end(round, share := round.take(helper))
    assert len(share) == WIDTH
    assert indices(round.take(helper)) == [WIDTH]


def test_a_helper_whose_loop_goes_on_after_a_timeout_is_not_waited_for(time: Time) -> None:
    round = round_of(coroutines(1), time)
    (helper,) = round.advance()
    round.take(helper)
    round.report(0, Raised(error=TimeoutError(), timed_out=True))
    assert round.is_over
    assert round.close() == {helper}


def test_a_loop_that_goes_on_after_all_its_results_makes_room(time: Time) -> None:
    round = Round([*coroutines(2), *plain(1, timeout=None)], time, width=2, grace=0.0)
    first, second = round.advance()
    round.take(first)
    round.report(0, Raised(error=TimeoutError(), timed_out=True))
    assert not round.needs_attention
    end(round, round.take(second))
    round.report(1, Returned(value=1))
    assert round.is_over
    assert round.close() == {first}


def test_whoever_waits_is_told_of_room_that_no_deadline_announces(time: Time) -> None:
    round = Round([*coroutines(2), *plain(2, timeout=None)], time, width=2, grace=0.0)
    for helper in round.advance():
        round.take(helper)
    round.report(0, Raised(error=TimeoutError(), timed_out=True))
    assert not round.needs_attention
    round.report(1, Returned(value=1))
    assert round.needs_attention
    assert len(round.advance()) == 1


def test_a_loop_that_is_slow_to_close_holds_nobody_up(time: Time) -> None:
    round = round_of([*coroutines(1), *plain(1)], time)
    (slow,) = round.advance()
    end(round, round.take(slow))
    assert round.needs_attention
    (other,) = round.advance()
    end(round, round.take(other))
    assert round.is_over
    assert round.close() == set()
