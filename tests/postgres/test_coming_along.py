"""Runs that come along with commits, over a whole shift."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from support.faults import Killed, unreachable
from support.rig import Rig
from support.scene import Scene

from docket_celery import START, Graph
from docket_celery.dispatcher import Dispatcher
from docket_celery.run.document import RunStatus
from docket_celery.shift import Shift
from docket_celery.telemetry.hook import DrainFinished


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


def test_who_came_along_to_a_process_that_died_is_driven_once_after_one_ttl(rig: Rig, place: Scene) -> None:
    called: list[str] = []
    first = rig.start(_graph(called)).id
    place.clock.advance(1)
    second = rig.start(_graph(called)).id

    def dies(fact: object) -> None:
        if isinstance(fact, DrainFinished):
            raise Killed

    rig.runs.always("release_claim", unreachable)
    dying = Shift(replace(rig.engine, hooks=dies), Dispatcher(rig.engine, len))  # type: ignore[arg-type]
    with pytest.raises(Killed):
        dying.work(rig.lease())
    assert (called, place.info(second).claim_attempts) == ([first], 1)
    assert Dispatcher(rig.engine, len).tick().leases == ()
    place.clock.advance(rig.engine.orphan_ttl + timedelta(seconds=1))
    Shift(rig.engine, Dispatcher(rig.engine, len)).work(rig.lease())
    assert called == [first, second]
    assert place.run(second).status is RunStatus.DONE
