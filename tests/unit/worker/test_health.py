"""Health is progress: due runs that nobody looks for, and leases that nobody takes, make a fleet unhealthy."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from docket_celery.storage.contracts.fleet import Backlog, WorkerSlots
from docket_celery.worker.health import Health, judge

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
LIMIT = timedelta(seconds=30)
FRESH, OLD = NOW - timedelta(seconds=20), NOW - timedelta(seconds=40)
IDLE = Backlog(
    now=NOW,
    due=0,
    oldest_due_at=None,
    next_wake_at=None,
    claimed=0,
    unredeemed=0,
    undelivered=0,
    poisoned=0,
    last_scan_at=FRESH,
    workers=(),
)
SLOTS = (WorkerSlots(worker="w1", slots=2, orphan_ttl=timedelta(seconds=60), seen_at=NOW),)


def _judged(**parts: Any) -> Health:
    return judge(replace(IDLE, **parts), due_limit=LIMIT, scan_limit=LIMIT)


@pytest.mark.parametrize("last_scan_at", [FRESH, OLD, None])
def test_a_fleet_without_due_runs_is_healthy(last_scan_at: datetime | None) -> None:
    assert _judged(last_scan_at=last_scan_at) == Health(healthy=True, reason="no run is due")


def test_a_run_that_is_due_for_less_than_its_limit_is_no_sign_of_anything() -> None:
    assert _judged(oldest_due_at=FRESH, last_scan_at=OLD).healthy


def test_a_run_that_nobody_looks_for_makes_the_fleet_unhealthy() -> None:
    verdict = _judged(oldest_due_at=OLD, last_scan_at=OLD, workers=SLOTS)
    assert not verdict.healthy
    assert "due for 0:00:40" in verdict.reason
    assert "the last scan was 0:00:40 ago" in verdict.reason


def test_a_run_that_is_due_where_nobody_ever_scanned_makes_the_fleet_unhealthy() -> None:
    verdict = _judged(oldest_due_at=OLD, last_scan_at=None)
    assert (verdict.healthy, "nobody has ever scanned" in verdict.reason) == (False, True)


def test_a_backlog_is_healthy_while_scans_go_on() -> None:
    assert _judged(oldest_due_at=OLD, last_scan_at=FRESH).healthy


def test_a_fleet_whose_slots_are_all_taken_works_although_its_ticks_wait() -> None:
    assert _judged(oldest_due_at=OLD, last_scan_at=OLD, workers=SLOTS, claimed=2).healthy
    assert not _judged(oldest_due_at=OLD, last_scan_at=OLD, workers=SLOTS, claimed=1).healthy
    assert not _judged(oldest_due_at=OLD, last_scan_at=OLD, workers=SLOTS, claimed=2, unredeemed=2).healthy


def test_leases_that_are_handed_out_again_and_again_and_never_taken_make_the_fleet_unhealthy() -> None:
    assert not _judged(claimed=2, unredeemed=2, undelivered=1).healthy
    assert _judged(claimed=3, unredeemed=2, undelivered=1).healthy
    assert _judged(claimed=2, unredeemed=2).healthy
