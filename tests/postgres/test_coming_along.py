"""Runs that come along with commits, over a whole shift."""

from __future__ import annotations

import pytest
from support.rig import Rig
from support.scene import Scene

from docket_celery import START, Graph
from docket_celery.dispatcher import Dispatcher
from docket_celery.shift import Shift


@pytest.fixture
def rig(place: Scene) -> Rig:
    return Rig(storage=place.storage, clock=place.clock, max_in_flight=10)


def _graph(called: list[str]) -> Graph:
    """Of one node, which notes the run that calls it."""
    return Graph("one").node("a", lambda ctx: called.append(ctx.run_id)).edge(START, "a")


def test_every_due_run_is_driven_once_in_the_order_of_age_with_one_exchange_each(rig: Rig, place: Scene) -> None:
    called: list[str] = []
    ids = []
    for _ in range(5):
        ids.append(rig.start(_graph(called)).id)
        place.clock.advance(1)
    report = Shift(rig.engine, Dispatcher(rig.engine, len)).work(rig.lease())
    assert (report.refilled, called) == (4, ids)
    assert (rig.runs.count("commit"), rig.runs.count("take_due")) == (5, 1)


def test_an_expired_claim_has_its_turn_while_ready_runs_keep_coming(rig: Rig, place: Scene) -> None:
    called: list[str] = []
    abandoned = rig.start(_graph(called)).id
    place.redeem(rig.lease())
    place.expire()
    for _ in range(8):
        rig.start(_graph(called))
        place.clock.advance(1)
    Shift(rig.engine, Dispatcher(rig.engine, len)).work(rig.lease(preference="ready"))
    assert called.index(abandoned) <= 2
    assert len(called) == 9
