"""Events: in order, without a hole, in pages, together with the bounds of what is there."""

from __future__ import annotations

import pytest
from support.scene import RETAIN, Scene

from docket_celery.errors import NotFound
from docket_celery.run.events import EventType
from docket_celery.run.views import EventPage
from docket_celery.storage.contracts.values import SYSTEM


@pytest.fixture
def told(scene: Scene) -> Scene:
    """A run with seven events, written by three commits."""
    scene.start()
    token = scene.hold()
    scene.commit("run-1", token, schedule=RETAIN, events=4)
    scene.commit("run-1", token, events=2)
    return scene


def _page(scene: Scene, **window: int) -> EventPage:
    return scene.storage.events.list_events(SYSTEM, "run-1", **window)


def test_events_count_from_one_without_a_hole(told: Scene) -> None:
    assert [event.seq for event in _page(told).events] == [1, 2, 3, 4, 5, 6, 7]
    assert {event.run_id for event in _page(told).events} == {"run-1"}


def test_an_event_keeps_what_it_says(told: Scene) -> None:
    first, second = _page(told, limit=2).events
    assert (first.type, second.type) == (EventType.RUN_STARTED, EventType.STEP_COMMITTED)
    assert (second.step, second.node, second.at, second.data) == (1, None, told.now, {"number": 2})


def test_a_page_begins_after_the_given_sequence_and_ends_at_its_limit(told: Scene) -> None:
    assert [event.seq for event in _page(told, after_seq=2, limit=3).events] == [3, 4, 5]
    assert [event.seq for event in _page(told, after_seq=6).events] == [7]


def test_a_page_tells_the_bounds_of_what_is_available(told: Scene) -> None:
    for after_seq in (0, 3, 7, 99):
        page = _page(told, after_seq=after_seq, limit=1)
        assert (page.oldest_available, page.latest_available, page.latest_committed) == (1, 7, 7)


def test_beyond_the_last_event_a_page_is_empty(told: Scene) -> None:
    assert _page(told, after_seq=7).events == ()


def test_events_of_runs_do_not_mix(told: Scene) -> None:
    told.start("run-2")
    assert [event.run_id for event in told.storage.events.list_events(SYSTEM, "run-2").events] == ["run-2"]


def test_a_run_without_events_has_an_empty_page(scene: Scene) -> None:
    scene.start(event_seq=0)
    assert _page(scene) == EventPage(events=(), oldest_available=None, latest_available=None, latest_committed=0)


def test_an_unknown_run_is_not_found(scene: Scene) -> None:
    with pytest.raises(NotFound):
        scene.storage.events.list_events(SYSTEM, "run-absent")


def test_event_data_cannot_be_changed_through_what_was_read(told: Scene) -> None:
    data = _page(told).events[1].data
    assert isinstance(data, dict)
    data["number"] = 99
    assert _page(told).events[1].data == {"number": 2}
