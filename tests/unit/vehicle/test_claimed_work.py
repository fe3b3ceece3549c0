"""When a node may begin, how long its claim is kept for it, and what becomes of a process that is told to end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest
from support.clock import NOON
from support.faults import Fault, unreachable
from support.rig import Rig

from docket_celery import FINISH, START, Graph, NodeContext
from docket_celery.executors import NodeExecutor
from docket_celery.run.document import RunStatus
from docket_celery.runtime.executor import Attempt, AttemptResult, IsVoid, MayBegin, always, call, never
from docket_celery.telemetry.hook import DrainFinished, VehicleCrashed
from docket_celery.testing import ManualClock
from docket_celery.vehicle.drive import ENDING, LOAD_LIMIT
from docket_celery.vehicle.moments import COMMIT_LIMIT
from docket_celery.vehicle.outcomes import Discarded, Parked, Released


def wide(*names: str, function: Any, **options: Any) -> Graph:
    """Siblings in one superstep, and a join."""
    graph = Graph("wide").field("log", list[str], reducer="append").output("log")
    for name in names:
        graph = graph.node(name, function, **options).edge(START, name)
    return graph.node("join", lambda ctx: {"log": ctx.node}).edge(list(names), "join").edge("join", FINISH)


def until(rig: Rig) -> float:
    """For how long from now the one claim is worth renewing."""
    (held,) = rig.holds.now
    return held.until - rig.clock.monotonic()


# -- the deadline of the moment -----------------------------------------------------------------------------------


def test_the_claim_is_kept_for_exactly_what_the_vehicle_is_doing() -> None:
    seen: list[tuple[str, float]] = []
    rig = Rig(max_attempt_elapsed=300.0)

    def node(ctx: NodeContext) -> None:
        seen.append((ctx.node, until(rig)))
        rig.advance(5.0)

    graph = Graph("g").node("a", node, timeout=40.0).node("b", node).edge(START, "a").edge("a", "b")
    rig.start(graph)
    rig.graphs.plan("fetch_graph", lambda: seen.append(("load", until(rig))))
    rig.runs.plan("commit", *[lambda: seen.append(("commit", until(rig)))] * 2)
    assert rig.drain() == Parked(park="terminal")
    assert seen == [("load", LOAD_LIMIT), ("a", 40.0), ("commit", COMMIT_LIMIT), ("b", 300.0), ("commit", COMMIT_LIMIT)]
    assert rig.holds.now == []


def test_siblings_in_turn_move_the_deadline_on_as_each_begins() -> None:
    seen: list[float] = []
    rig = Rig(drain_max_elapsed=None)

    def node() -> None:
        seen.append(until(rig))
        rig.advance(29.0)

    rig.start(wide("a", "b", "c", function=node, timeout=30.0))
    assert rig.drain() == Parked(park="terminal")
    assert seen == [30.0, 30.0, 30.0]


class Together:
    """Begins all attempts at one instant, then lets each take its time: as threads would, without any."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock

    def execute(
        self, attempts: Sequence[Attempt], may_begin: MayBegin = always, is_void: IsVoid = never
    ) -> Sequence[AttemptResult]:
        return [call(attempt.started(self._clock.monotonic), may_begin) for attempt in attempts]


def test_siblings_together_keep_the_claim_for_the_longest_of_them() -> None:
    seen: list[float] = []
    rig = Rig(executor=Together)
    graph = Graph("g")
    for name, timeout in (("a", 20.0), ("b", 90.0), ("c", 10.0)):
        graph = graph.node(name, lambda: seen.append(until(rig)), timeout=timeout).edge(START, name)
    rig.start(graph)
    rig.drain()
    assert seen == [20.0, 90.0, 90.0]


# -- a claim found lost -------------------------------------------------------------------------------------------


def test_no_further_sibling_begins_once_the_claim_was_found_lost() -> None:
    begun: list[str] = []
    rig = Rig()

    def node(ctx: NodeContext) -> dict[str, str]:
        begun.append(ctx.node)
        rig.expire()
        rig.runs.redeem_claim(rig.lease(), token="thief")
        rig.holds.now[0].lost = True
        return {"log": ctx.node}

    rig.start(wide("a", "b", function=node))
    lease = rig.lease()
    assert isinstance(rig.drain(lease), Discarded)
    assert begun == ["a"]
    assert rig.run().checkpoint_seq == 1
    rig.runs.refresh_claim("run-1", "thief")


def test_no_next_node_begins_once_the_claim_was_found_lost() -> None:
    rig = Rig()
    rig.start(wide("a", function=lambda ctx: {"log": ctx.node}))

    def lose() -> None:
        rig.holds.now[0].lost = True

    rig.runs.plan("commit", lose)
    assert rig.drain() == Discarded(reason="the claim was lost while it was renewed")
    assert rig.run().checkpoint_seq == 2
    # The mark decides nothing: the claim was ours all the time, so the run goes on at once.
    assert rig.info().wake_at == NOON
    assert rig.drain() == Parked(park="terminal")


def test_a_result_is_offered_to_the_fence_even_when_the_claim_was_marked_lost() -> None:
    rig = Rig()

    def node(ctx: NodeContext) -> dict[str, str]:
        rig.holds.now[0].lost = ctx.node == "join"
        return {"log": ctx.node}

    rig.start(Graph("g").field("log", list[str], reducer="append").node("join", node).edge(START, "join"))
    assert rig.drain() == Parked(park="terminal")


# -- without renewal ----------------------------------------------------------------------------------------------


def test_without_renewal_siblings_that_could_outlast_the_claim_stay_due_beside_pending_writes() -> None:
    begun: list[tuple[str, float]] = []
    rig = Rig(lease_renewal=False, orphan_ttl=60.0, max_attempt_elapsed=30.0)

    def node(ctx: NodeContext) -> dict[str, str]:
        begun.append((ctx.node, rig.clock.monotonic()))
        rig.advance(9.0)
        return {"log": ctx.node}

    rig.start(wide("a", "b", "c", "d", function=node))
    # Two of thirty seconds fit below forty: begun at 0 and 9. Then 18 s are too old, and too young to be refreshed.
    assert rig.drain() == Released(reason="the claim's time does not allow the next node")
    assert begun == [("a", 0.0), ("b", 9.0)]
    run = rig.run()
    assert [(task.node, task.state) for task in run.tasks] == [
        ("a", "finished"), ("b", "finished"), ("c", "ready"), ("d", "ready"),
    ]  # fmt: skip
    assert (rig.info().wake_at, rig.info().claim_attempts) == (rig.clock.now(), 0)
    outcomes = [rig.drain().kind]
    while rig.run().status is RunStatus.RUNNING:
        outcomes.append(rig.drain().kind)
    assert rig.run().output == {"log": ["a", "b", "c", "d", "join"]}
    assert [name for name, _ in begun] == ["a", "b", "c", "d"]
    for ends_by, claim in ((at + 30.0, at // 18.0 * 18.0) for _, at in begun):
        assert ends_by <= claim + 40.0


def test_without_renewal_a_long_drain_goes_on_with_each_claim() -> None:
    rig = Rig(lease_renewal=False, orphan_ttl=60.0, max_attempt_elapsed=38.0, drain_max_elapsed=None)
    graph = Graph("g").field("log", list[str], reducer="append").output("log")
    names = [f"s{number}" for number in range(8)]

    def node(ctx: NodeContext) -> dict[str, str]:
        rig.advance(7.0)
        return {"log": ctx.node}

    for source, name in zip([START, *names], names, strict=False):
        graph = graph.node(name, node).edge(source, name)
    rig.start(graph)
    drains = 0
    while rig.run().status is RunStatus.RUNNING:
        rig.drain()
        drains += 1
    assert drains == 8
    assert rig.run().output == {"log": names}
    assert rig.info().claim_attempts == 0


def test_with_renewal_a_wide_superstep_takes_as_long_as_it_takes() -> None:
    rig = Rig(orphan_ttl=60.0, max_attempt_elapsed=30.0, drain_max_elapsed=None)
    rig.start(wide(*"abcdefgh", function=rig.takes(29.0)))
    assert rig.drain() == Parked(park="terminal")


@pytest.mark.usefixtures("signals_given_back")
def test_a_node_that_runs_when_its_claim_is_found_lost_is_ended_and_is_no_failure_of_anybody() -> None:
    rig = Rig(executor=lambda clock: NodeExecutor(time.monotonic))

    def loses_its_claim() -> None:
        rig.verbs.cancel_run("run-1")
        rig.holds.now[0].lost = True
        time.sleep(3_600.0)

    rig.start(Graph("g").node("a", loses_its_claim).edge(START, "a"))
    assert isinstance(rig.drain(), Discarded)
    assert rig.run().status is RunStatus.CANCELLED
    assert "node_failed" not in [event.type for event in rig.events()]


# -- the end of the process ---------------------------------------------------------------------------------------


def test_siblings_that_have_not_begun_when_the_worker_stops_stay_due() -> None:
    begun: list[str] = []
    rig = Rig()

    def node(ctx: NodeContext) -> dict[str, str]:
        begun.append(ctx.node)
        return {"log": ctx.node}

    rig.start(wide("a", "b", "c", function=node))
    outcome = rig.vehicle(stopping=lambda: bool(begun)).drain(rig.lease())
    assert outcome == Parked(park="immediate", boundary="stopping")
    assert (begun, rig.info().claim_attempts, rig.info().wake_at) == (["a"], 0, NOON)
    assert rig.drain() == Parked(park="terminal")
    assert begun == ["a", "b", "c"]
    assert rig.run().output == {"log": ["a", "b", "c", "join"]}


class Ends:
    """An executor during which the process is told to end."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def execute(
        self, attempts: Sequence[Attempt], may_begin: MayBegin = always, is_void: IsVoid = never
    ) -> Sequence[AttemptResult]:
        raise self._error


class GreenletExit(BaseException):
    """As gevent ends a greenlet."""


@pytest.mark.parametrize(
    ("error", "stopping", "attempts"),
    [
        (SystemExit(), False, 0),
        (GreenletExit(), False, 0),
        (KeyboardInterrupt(), True, 0),
        (KeyboardInterrupt(), False, 1),
    ],
    ids=["exit", "greenlet", "interrupt-while-stopping", "interrupt-out-of-the-blue"],
)
def test_a_process_that_is_told_to_end_gives_its_claim_back_and_passes_the_order_on(
    error: BaseException, stopping: bool, attempts: int
) -> None:
    rig = Rig(executor=lambda clock: Ends(error))
    rig.start(wide("a", function=lambda: None))
    with pytest.raises(type(error)):
        rig.vehicle(stopping=lambda: stopping).drain(rig.lease())
    info = rig.info()
    assert (info.claim_attempts, info.claimed_at, info.wake_at) == (attempts, None, NOON)
    (fact,) = rig.reported(DrainFinished)
    assert fact.outcome == "released"
    assert fact.detail == f"released: stopped by {type(error).__module__}.{type(error).__name__}"
    assert rig.holds.now == []


class Hangs:
    """An executor that goes on beyond the deadline of its attempt until the pool ends the process."""

    def __init__(self, clock: ManualClock, *, beyond: float) -> None:
        self._clock = clock
        self._beyond = beyond

    def execute(
        self, attempts: Sequence[Attempt], may_begin: MayBegin = always, is_void: IsVoid = never
    ) -> Sequence[AttemptResult]:
        (attempt,) = attempts
        assert may_begin(attempt.timeout)
        assert attempt.timeout is not None
        self._clock.advance(attempt.timeout + self._beyond)
        raise SystemExit


def test_a_vehicle_that_hung_and_was_ended_for_it_leaves_its_claim_to_expiry_so_that_the_launch_counts() -> None:
    rig = Rig(executor=lambda clock: Hangs(clock, beyond=ENDING))
    rig.start(wide("a", function=lambda: None))
    with pytest.raises(SystemExit):
        rig.drain()
    assert rig.runs.count("release_claim") == 0
    assert rig.info().claim_attempts == 1
    assert rig.reported(DrainFinished) == []
    assert [fact.error for fact in rig.reported(VehicleCrashed)] == ["builtins.SystemExit"]


def test_a_vehicle_that_is_ended_just_after_a_deadline_was_about_to_see_to_it_and_gives_its_claim_back() -> None:
    rig = Rig(executor=lambda clock: Hangs(clock, beyond=ENDING - 0.1))
    rig.start(wide("a", function=lambda: None))
    with pytest.raises(SystemExit):
        rig.drain()
    assert (rig.info().claim_attempts, rig.info().claimed_at) == (0, None)


def test_a_long_redemption_is_no_hung_vehicle() -> None:
    rig = Rig()
    rig.start(wide("a", function=lambda: None))

    def ended() -> None:
        rig.advance(rig.engine.config.orphan_ttl - 1.0)
        raise SystemExit

    rig.runs.plan("redeem_claim", ended)
    with pytest.raises(SystemExit):
        rig.drain()
    assert [fact.outcome for fact in rig.reported(DrainFinished)] == ["released"]


def test_a_process_that_is_told_to_end_while_the_database_is_away_leaves_its_claim_to_expiry() -> None:
    rig = Rig(executor=lambda clock: Ends(SystemExit()))
    rig.start(wide("a", function=lambda: None))
    rig.runs.always("release_claim", unreachable)
    with pytest.raises(SystemExit):
        rig.drain()
    assert rig.pauses == []
    assert [fact.outcome for fact in rig.reported(DrainFinished)] == ["unreached"]


def test_an_exit_while_the_lease_is_being_redeemed_gives_it_back_as_well() -> None:
    rig = Rig()
    rig.start(wide("a", function=lambda: None))
    rig.runs.plan("redeem_claim", Fault(error=SystemExit(), applied=True))
    with pytest.raises(SystemExit):
        rig.drain()
    assert (rig.info().claim_attempts, rig.info().wake_at) == (0, NOON)


def test_an_exit_of_the_nodes_own_is_a_failure_of_the_node() -> None:
    def leaves() -> None:
        raise SystemExit(3)

    rig = Rig()
    rig.start(Graph("g").node("a", leaves).edge(START, "a"))
    assert rig.drain() == Parked(park="terminal")
    failure = rig.run().failure
    assert failure is not None
    assert (failure.code, failure.error_type) == ("node_error", "builtins.SystemExit")
    assert rig.info().wake_at is None
