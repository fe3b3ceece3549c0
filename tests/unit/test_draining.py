"""Draining in the calling process: what it drives, when it ends, and what a crash costs the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.faults import Fault
from support.rig import Rig

from docket_celery import START, Graph
from docket_celery.draining import drain_due
from docket_celery.errors import ClaimInvariant, NotFound
from docket_celery.run.document import RunStatus


def quick(function: Callable[..., Any] = lambda: None) -> Graph:
    return Graph("quick").node("a", function).edge(START, "a")


def a_rig(runs: int, **options: Any) -> Rig:
    rig = Rig(**options)
    for _ in range(runs):
        rig.start(quick())
    return rig


def done(rig: Rig, runs: int) -> list[bool]:
    return [rig.run(f"run-{number}").status is RunStatus.DONE for number in range(1, runs + 1)]


def test_every_due_run_is_driven_and_counted() -> None:
    rig = a_rig(3)
    assert drain_due(rig.engine, limit=None) == 3
    assert done(rig, 3) == [True] * 3
    assert drain_due(rig.engine, limit=None) == 0


def test_a_run_that_comes_along_with_a_commit_is_not_asked_for() -> None:
    rig = a_rig(3)
    drain_due(rig.engine, limit=None)
    assert rig.runs.count("take_due") == 2  # The first run, and that nothing is due any more.


def test_no_more_runs_are_taken_than_the_limit_says() -> None:
    rig = a_rig(3)
    assert drain_due(rig.engine, limit=2) == 2
    assert done(rig, 3) == [True, True, False]
    info = rig.info("run-3")
    assert (info.claimed_at, info.claim_attempts) == (None, 0)


def test_no_registered_slot_is_asked_for() -> None:
    rig = a_rig(2, max_in_flight=1)
    rig.lease()
    assert drain_due(rig.engine, limit=None) == 1


def test_a_run_that_crashes_its_vehicle_stops_no_other_and_is_raised_at_the_end() -> None:
    rig = a_rig(3)
    rig.graphs.plan("fetch_graph", Fault(error=NotFound("gone")))
    with pytest.raises(ClaimInvariant, match="run-1"):
        drain_due(rig.engine, limit=None)
    assert done(rig, 3) == [False, True, True]


def test_a_run_whose_attempts_are_used_up_is_halted_and_does_not_end_the_draining() -> None:
    rig = a_rig(1, max_claim_attempts=1)
    rig.runs.redeem_claim(rig.lease(), token="dies")
    rig.expire()
    rig.start(quick())
    assert drain_due(rig.engine, limit=None) == 1
    assert rig.info("run-1").poisoned_at is not None
    assert done(rig, 2) == [False, True]


def test_who_came_along_is_given_back_uncounted_when_the_process_is_ended() -> None:
    rig = a_rig(2)

    def ends_the_process(_: Any) -> None:
        if rig.run("run-1").status is RunStatus.DONE:
            raise SystemExit

    rig.engine.hooks.add(ends_the_process)
    with pytest.raises(SystemExit):
        drain_due(rig.engine, limit=None)
    info = rig.info("run-2")
    assert (info.claimed_at, info.claim_attempts) == (None, 0)
