"""When a run starts: only instants are stored, whatever zone, fold or session they come from."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from support.rig import Rig

from docket_celery import START, Graph
from docket_celery.errors import InvalidInput
from docket_celery.storage.contracts.values import Storage
from docket_celery.testing import ManualClock

BERLIN = ZoneInfo("Europe/Berlin")
NEW_YORK = ZoneInfo("America/New_York")

INSTANTS = {
    "a wall time that does not exist, before": (
        datetime(2026, 3, 29, 2, 30, tzinfo=BERLIN, fold=0),
        datetime(2026, 3, 29, 1, 30, tzinfo=UTC),
    ),
    "a wall time that does not exist, after": (
        datetime(2026, 3, 29, 2, 30, tzinfo=BERLIN, fold=1),
        datetime(2026, 3, 29, 0, 30, tzinfo=UTC),
    ),
    "a wall time that comes twice, first": (
        datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=0),
        datetime(2026, 10, 25, 0, 30, tzinfo=UTC),
    ),
    "a wall time that comes twice, second": (
        datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1),
        datetime(2026, 10, 25, 1, 30, tzinfo=UTC),
    ),
    "elsewhere, first": (
        datetime(2026, 11, 1, 1, 30, tzinfo=NEW_YORK, fold=0),
        datetime(2026, 11, 1, 5, 30, tzinfo=UTC),
    ),
    "elsewhere, second": (
        datetime(2026, 11, 1, 1, 30, tzinfo=NEW_YORK, fold=1),
        datetime(2026, 11, 1, 6, 30, tzinfo=UTC),
    ),
    "an odd offset": (
        datetime(2026, 1, 15, 12, 0, 1, tzinfo=timezone(-timedelta(hours=7, minutes=28))),
        datetime(2026, 1, 15, 19, 28, 1, tzinfo=UTC),
    ),
    "the first instant there is": (
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(1, 1, 1, tzinfo=UTC),
    ),
    "the last second there is": (
        datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC),
    ),
}
REFUSED = {
    "naive": datetime(2026, 1, 15, 12, 0),
    "a day": date(2026, 1, 15),
    "text": "2026-01-15T12:00:00",
    "before the first year": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=2))),
    "after the last year": datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone(-timedelta(hours=2))),
}


@pytest.fixture
def rig(storage: Storage, clock: ManualClock) -> Rig:
    return Rig(storage=storage, clock=clock)


def publish(rig: Rig) -> Any:
    return rig.verbs.save_graph(Graph("g").node("a", "a").edge(START, "a"), check_nodes=False)


@pytest.mark.parametrize(("given", "stored"), INSTANTS.values(), ids=INSTANTS.keys())
def test_a_start_is_stored_as_the_instant_it_means(rig: Rig, given: datetime, stored: datetime) -> None:
    run = rig.verbs.start_run(publish(rig), start_at=given)
    assert rig.verbs.inspect_run(run.id).wake_at == stored


@pytest.mark.parametrize("given", REFUSED.values(), ids=REFUSED.keys())
def test_what_is_no_single_instant_is_refused_and_nothing_is_stored(rig: Rig, given: Any) -> None:
    ref = publish(rig)
    with pytest.raises(InvalidInput, match="start_at"):
        rig.verbs.start_run(ref, start_at=given)
    assert rig.verbs.list_runs().runs == ()


def test_a_day_later_is_a_day_later_across_a_change_of_clocks(rig: Rig) -> None:
    asked = datetime(2026, 3, 28, 12, 0, tzinfo=BERLIN).astimezone(UTC)
    run = rig.verbs.start_run(publish(rig), start_at=asked + timedelta(hours=24))
    assert rig.verbs.inspect_run(run.id).wake_at == datetime(2026, 3, 29, 11, 0, tzinfo=UTC)
