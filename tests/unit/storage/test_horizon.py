"""Where a process's next scan begins."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from docket_celery.storage.postgres.horizon import EVERYTHING, Outlook

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
MARGIN = timedelta(milliseconds=200)


def _answer(ready: float | None = None, claimed: float | None = None) -> dict[str, Any]:
    instants = {"ready_from": ready, "claimed_from": claimed}
    return {name: None if at is None else NOON + timedelta(seconds=at) for name, at in instants.items()}


def _after_a_full_look(ready: float = 10, claimed: float = 20, took: float = 0.001) -> Outlook:
    return Outlook().after(_answer(ready, claimed), EVERYTHING, 100 - took, 100)


def test_the_first_scan_looks_at_everything() -> None:
    assert Outlook().begin(5.0) is EVERYTHING


def test_the_next_one_begins_a_margin_before_the_first_that_was_seen() -> None:
    horizon = _after_a_full_look().begin(100.9)
    assert horizon.ready_from == NOON + timedelta(seconds=10) - MARGIN
    assert horizon.claimed_from == NOON + timedelta(seconds=20) - MARGIN


def test_an_instant_at_the_beginning_of_time_has_no_margin_before_it() -> None:
    beginning = datetime.min.replace(tzinfo=UTC)
    horizon = Outlook().after({"ready_from": beginning, "claimed_from": beginning}, EVERYTHING, 99, 100).horizon
    assert (horizon.ready_from, horizon.claimed_from) == (beginning, beginning)


def test_after_a_second_everything_is_looked_at_again() -> None:
    assert _after_a_full_look().begin(101.0) is EVERYTHING


def test_a_scan_from_the_horizon_on_moves_it_up_and_never_down() -> None:
    outlook = _after_a_full_look()
    begun = outlook.begin(100.1)
    assert outlook.after(_answer(10, 20), begun, 100.1, 100.2).horizon == begun
    moved = outlook.after(_answer(15, 25), begun, 100.1, 100.2)
    assert moved.horizon.ready_from == NOON + timedelta(seconds=15) - MARGIN
    assert moved.begin(101.0) is EVERYTHING


def test_a_full_look_moves_the_horizon_down() -> None:
    outlook = _after_a_full_look().after(_answer(3, 4), EVERYTHING, 101, 101)
    assert outlook.horizon.ready_from == NOON + timedelta(seconds=3) - MARGIN


def test_what_a_scan_did_not_look_at_stays_as_it_was() -> None:
    outlook = _after_a_full_look()
    begun = outlook.begin(100.1)
    assert outlook.after(_answer(None, None), begun, 100.1, 100.2).horizon == outlook.horizon


def test_a_second_look_waits_for_a_twentieth_of_a_second() -> None:
    outlook = _after_a_full_look()
    assert not outlook.allows_second_look(100.04)
    assert outlook.allows_second_look(100.06)


def test_full_looks_take_at_most_a_twentieth_of_the_time() -> None:
    outlook = _after_a_full_look(took=0.1)
    assert outlook.begin(101.9) is not EVERYTHING
    assert outlook.begin(102.1) is EVERYTHING
    assert not outlook.allows_second_look(101.9)
