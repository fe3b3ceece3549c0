"""The vehicle's road from a lease to a committed stop, the budgets on the way, and its one report."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from support.clock import NOON
from support.faults import Fault
from support.rig import Rig

from docket_celery import FINISH, START, Graph, Interrupt, Retry, Sleep
from docket_celery.errors import (
    ClaimInvariant,
    EventConflict,
    InvalidCommit,
    NotFound,
    RowRefused,
    SchemaMismatch,
    StoreError,
    ValueRefused,
)
from docket_celery.run.document import RunStatus
from docket_celery.run.events import EventType
from docket_celery.run.moment import CheckpointType
from docket_celery.runtime.plan import Ended
from docket_celery.storage.contracts.values import Retain
from docket_celery.telemetry.hook import DrainFinished, LeaseRefused, MomentCommitted, VehicleCrashed
from docket_celery.testing import ManualClock
from docket_celery.vehicle.outcomes import Deferred, Discarded, FenceLost, HostIncompatible, Parked


def line(length: int, **node_options: Any) -> Graph:
    """`s1` to `s<length>`, each of which logs its name."""
    graph = Graph("line").field("log", list[str], reducer="append").output("log")
    names = [f"s{number}" for number in range(1, length + 1)]
    for name in names:
        graph = graph.node(name, lambda ctx: {"log": ctx.node}, **node_options)
    for source, target in zip([START, *names], [*names, FINISH], strict=True):
        graph = graph.edge(source, target)
    return graph


def single(function: Any, **node_options: Any) -> Graph:
    """One node `a`, with a field `n`."""
    graph = Graph("single").field("n", int).field("log", list[Any], reducer="append")
    return graph.node("a", function, **node_options).edge(START, "a")


def test_a_lease_is_drained_to_the_end_of_its_run() -> None:
    rig = Rig()
    rig.start(line(3))
    assert rig.drain() == Parked(park="terminal")
    assert rig.run().status is RunStatus.DONE
    assert rig.run().output == {"log": ["s1", "s2", "s3"]}


def test_each_moment_is_one_commit_under_the_private_token_and_keeps_the_claim_until_the_last() -> None:
    rig = Rig()
    rig.start(line(3))
    lease = rig.lease()
    rig.drain(lease)
    proposals = [arguments[1] for arguments, _ in rig.runs.of("commit")]
    assert [proposal.expected_checkpoint_seq for proposal in proposals] == [1, 2, 3]
    assert [isinstance(proposal.schedule, Retain) for proposal in proposals] == [True, True, False]
    assert len({proposal.commit_id for proposal in proposals}) == 3
    assert {proposal.claim_token for proposal in proposals} == {rig.runs.of("redeem_claim")[0][1]["token"]}
    assert lease.claim_token not in {proposal.claim_token for proposal in proposals}


def test_a_run_that_asks_parks_external_and_one_that_sleeps_parks_at_its_time() -> None:
    rig = Rig()
    rig.start(single(lambda n=None: Interrupt("n") if n is None else None))
    assert rig.drain() == Parked(park="external")
    assert rig.run().status is RunStatus.WAITING
    rig.start(single(lambda: Sleep(10)))
    assert rig.drain() == Parked(park="at")
    assert rig.info("run-2").wake_at == NOON + timedelta(seconds=10)


def test_a_timed_park_tells_the_waker_how_long_it_takes() -> None:
    rig = Rig()
    rig.start(single(lambda: Sleep(0.25)))
    rig.nudges.after.clear()
    rig.drain()
    assert rig.nudges.after == [0.25]


# -- redeeming ----------------------------------------------------------------------------------------------------


def test_a_lease_delivered_twice_is_refused_before_any_node_runs() -> None:
    rig = Rig()
    rig.start(line(1))
    lease = rig.lease()
    rig.drain(lease)
    committed = rig.runs.count("commit")
    assert rig.drain(lease) == FenceLost()
    assert rig.runs.count("commit") == committed
    assert [fact.run_id for fact in rig.reported(LeaseRefused)] == ["run-1"]
    assert rig.reported(DrainFinished)[-1].outcome == "fence_lost"
    assert rig.reported(DrainFinished)[-1].committed_moments == 0


def test_a_refused_lease_disturbs_neither_the_winners_claim_nor_its_schedule() -> None:
    rig = Rig()
    rig.start(line(2))
    lease = rig.lease()
    winner = rig.runs.redeem_claim(lease, token="winner")
    before = rig.info()
    assert rig.drain(lease) == FenceLost()
    assert rig.info() == before
    assert rig.runs.count("release_claim") == 0
    rig.runs.refresh_claim("run-1", winner.claim_token)


def test_a_lease_overtaken_by_a_cancel_is_refused() -> None:
    rig = Rig()
    rig.start(line(1))
    lease = rig.lease()
    rig.verbs.cancel_run("run-1")
    assert rig.drain(lease) == FenceLost()
    assert rig.run().status is RunStatus.CANCELLED


# -- checks before the first node, in their order -----------------------------------------------------------------


def test_a_claimed_run_that_is_not_running_raises_and_reports_the_crash() -> None:
    rig = Rig()
    rig.start(line(1))
    lease = rig.lease()
    redeemed = rig.runs.redeem_claim(lease, token="ours")
    done = rig.state.runs["run-1"]
    done.run = type(done.run)(**{**_parts(redeemed.run), "status": RunStatus.DONE})
    rig.ids.token = lambda: "ours"  # type: ignore[method-assign]
    with pytest.raises(ClaimInvariant, match="claimed run 'run-1' is done"):
        rig.drain(lease)
    (crash,) = rig.reported(VehicleCrashed)
    assert (crash.run_id, crash.claim_attempt, crash.error) == ("run-1", 1, "docket_celery.errors.ClaimInvariant")
    assert rig.reported(DrainFinished) == []


def _parts(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__struct_fields__}


def test_a_missing_graph_raises_and_the_claims_expiry_recovers_the_run() -> None:
    rig = Rig()
    rig.start(line(1))
    rig.graphs.plan("fetch_graph", Fault(error=NotFound("no graph")))
    with pytest.raises(ClaimInvariant, match=r"graph 'line' version \w+ of claimed run 'run-1' is missing"):
        rig.drain()
    assert rig.info().claim_attempts == 1
    assert rig.holds.now == []
    rig.expire()
    assert rig.drain() == Parked(park="terminal")


def test_a_graph_that_cannot_be_compiled_comes_before_limits_that_do_not_fit() -> None:
    rig = Rig(max_attempt_elapsed=5.0)
    graph = single(lambda: None, timeout=60.0)
    rig.start(graph)
    known = dict(rig.functions)
    rig.functions.clear()
    assert rig.drain().kind == "abandoned"
    rig.functions |= known
    rig.clock.advance(60.0)
    assert isinstance(rig.drain(), HostIncompatible)


def test_a_timer_found_due_by_the_store_fires_although_the_vehicles_reading_lags() -> None:
    rig = Rig()
    rig.start(single(lambda: Sleep(10)))
    rig.drain()
    rig.clock.advance(10.0)
    # The lease was claimed at the due time; a redemption that answered with an earlier clock must not defer it.
    assert rig.drain() == Parked(park="terminal")


def test_a_run_with_nothing_due_is_deferred_to_its_resume_time() -> None:
    rig = Rig()
    rig.start(single(lambda: Sleep(100)))
    rig.drain()
    rig.state.runs["run-1"].wake_at = rig.clock.now()
    rig.clock.advance(1.0)
    assert rig.drain() == Deferred(disposition="rescheduled")
    assert rig.info().wake_at == NOON + timedelta(seconds=100)
    assert (rig.info().claim_attempts, rig.info().claim_abandons) == (0, 1)


def test_a_claimed_run_blocked_on_interrupts_raises_and_names_them() -> None:
    rig = Rig()
    rig.start(single(lambda n=None: Interrupt("n") if n is None else None))
    rig.drain()
    stored = rig.state.runs["run-1"]
    stored.run = type(stored.run)(**{**_parts(stored.run), "status": RunStatus.RUNNING})
    stored.wake_at = rig.clock.now()
    with pytest.raises(ClaimInvariant, match="blocked on open interrupts") as raised:
        rig.drain()
    assert raised.value.details["interrupt_ids"] == tuple(open_.id for open_ in stored.run.interrupts)


def test_a_run_that_turns_out_to_have_ended_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    rig.start(line(1))
    monkeypatch.setattr("docket_celery.vehicle.moments.propose_advance", lambda *_, **__: Ended())
    with pytest.raises(ClaimInvariant, match="has already ended"):
        rig.drain()


def test_a_fault_of_our_own_while_proposing_is_raised_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    rig.start(line(1))

    def broken(*_: Any, **__: Any) -> None:
        raise AssertionError("a bug")

    monkeypatch.setattr("docket_celery.vehicle.moments.propose_advance", broken)
    with pytest.raises(AssertionError):
        rig.drain()
    (crash,) = rig.reported(VehicleCrashed)
    assert (crash.error, crash.message, crash.committed_moments) == ("builtins.AssertionError", "a bug", 0)
    assert rig.info().claim_attempts == 1
    assert rig.holds.now == []


# -- committing ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [InvalidCommit("no"), NotFound("no"), EventConflict("no")], ids=lambda e: type(e).__name__
)
def test_a_rejected_commit_raises_and_the_claims_expiry_recovers_the_run(error: Exception) -> None:
    rig = Rig()
    rig.start(line(1))
    rig.runs.plan("commit", Fault(error=error))
    with pytest.raises(ClaimInvariant, match="was rejected: no"):
        rig.drain()
    assert len(rig.reported(VehicleCrashed)) == 1
    rig.expire()
    assert rig.drain() == Parked(park="terminal")
    assert rig.run().output == {"log": ["s1"]}


def test_a_moment_whose_fence_is_gone_is_discarded_and_the_thief_goes_on_undisturbed() -> None:
    rig = Rig()
    rig.start(line(2))
    taken: list[str] = []

    def steal() -> None:
        rig.expire()
        taken.append(rig.runs.redeem_claim(rig.lease(), token="thief").claim_token)

    rig.runs.plan("commit", steal)
    lease = rig.lease()
    outcome = rig.drain(lease)
    assert isinstance(outcome, Discarded)
    assert rig.run().checkpoint_seq == 1
    assert rig.info().claim_redeemed
    rig.runs.refresh_claim("run-1", "thief")
    assert rig.reported(MomentCommitted) == [rig.reported(MomentCommitted)[0]]


def test_a_cancel_during_a_node_wins_over_its_result() -> None:
    rig = Rig()
    rig.start(single(lambda: rig.verbs.cancel_run("run-1") and {"n": 1}))
    assert isinstance(rig.drain(), Discarded)
    assert rig.run().status is RunStatus.CANCELLED
    assert rig.run().fields == {"log": []}
    assert rig.info().wake_at is None


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RowRefused("22P05: unsupported Unicode escape sequence"), "not_storable"),
        (ValueRefused("$.log[2].k", "is a NUL"), "value_refused"),
        (ValueRefused("$.log", "is too large", code="payload_too_large"), "payload_too_large"),
        (ValueError("Out of range float values are not JSON compliant"), "not_storable"),
        (RecursionError("maximum recursion depth exceeded"), "not_storable"),
    ],
    ids=["row", "value", "too-large", "encoding", "depth"],
)
def test_a_state_that_cannot_be_stored_fails_the_run_once_and_for_all(error: Exception, code: str) -> None:
    executions: list[int] = []
    rig = Rig()
    rig.start(single(lambda: executions.append(1) or {"n": 1}, retry=Retry(max_attempts=5)))
    rig.runs.plan("commit", Fault(error=error))
    assert rig.drain() == Parked(park="terminal")
    run = rig.run()
    assert run.status is RunStatus.FAILED
    assert run.failure is not None
    assert (run.failure.code, run.failure.message) == (code, str(error))
    assert run.fields == {"log": []}
    assert [event.type for event in rig.events()] == [EventType.RUN_STARTED, EventType.RUN_FAILED]
    assert len(executions) == 1
    assert rig.reported(MomentCommitted)[-1].moment.checkpoint_type is CheckpointType.RUN_FAILED
    assert rig.reported(VehicleCrashed) == []


@pytest.mark.parametrize("method", ["redeem_claim", "commit"])
@pytest.mark.parametrize(
    "error", [SchemaMismatch("too old"), StoreError("a constraint")], ids=lambda e: type(e).__name__
)
def test_any_other_refusal_of_the_store_is_a_crash(method: str, error: Exception) -> None:
    rig = Rig()
    rig.start(line(1))
    rig.runs.plan(method, Fault(error=error))
    with pytest.raises(type(error)):
        rig.drain()
    assert [fact.message for fact in rig.reported(VehicleCrashed)] == [str(error)]
    assert rig.reported(DrainFinished) == []
    rig.expire()
    assert rig.drain() == Parked(park="terminal")


def test_a_state_that_cannot_be_stored_at_the_budgets_boundary_is_no_yield() -> None:
    rig = Rig(drain_max_moments=1)
    rig.start(line(2))
    rig.runs.plan("commit", Fault(error=RowRefused("no")))
    assert rig.drain() == Parked(park="terminal")
    assert [fact.boundary for fact in rig.reported(DrainFinished)] == [None]


def test_a_failure_that_cannot_be_stored_either_is_a_crash() -> None:
    rig = Rig()
    rig.start(line(1))
    rig.runs.plan("commit", Fault(error=RowRefused("one")), Fault(error=RowRefused("two")))
    with pytest.raises(RowRefused, match="two"):
        rig.drain()
    assert len(rig.reported(VehicleCrashed)) == 1


def test_a_cancel_that_comes_before_the_failure_of_an_unstorable_state_wins() -> None:
    rig = Rig()
    rig.start(line(1))
    rig.runs.plan("commit", Fault(error=RowRefused("no")), lambda: rig.verbs.cancel_run("run-1"))
    assert isinstance(rig.drain(), Discarded)
    assert rig.run().status is RunStatus.CANCELLED


# -- the budget ---------------------------------------------------------------------------------------------------


def test_the_budget_of_moments_narrows_the_last_of_them_to_an_immediate_park() -> None:
    rig = Rig(drain_max_moments=2)
    rig.start(line(5))
    assert rig.drain() == Parked(park="immediate", boundary="max_moments")
    assert rig.info().wake_at == rig.clock.now()
    assert rig.run().checkpoint_seq == 3
    assert rig.drain() == Parked(park="immediate", boundary="max_moments")
    assert rig.drain() == Parked(park="terminal")


def test_the_budget_of_seconds_is_looked_at_between_moments() -> None:
    rig = Rig(drain_max_elapsed=10.0)
    rig.start(line(4).node("slow", rig.takes(10.0)).edge(START, "slow"))
    assert rig.drain() == Parked(park="immediate", boundary="max_elapsed")
    assert rig.drain() == Parked(park="terminal")


def test_both_budgets_at_once_yield_once() -> None:
    rig = Rig(drain_max_moments=1, drain_max_elapsed=10.0)
    rig.start(line(2).node("slow", rig.takes(10.0)).edge(START, "slow"))
    assert rig.drain() == Parked(park="immediate", boundary="both")
    assert rig.runs.count("commit") == 1
    assert [fact.boundary for fact in rig.reported(DrainFinished)] == ["both"]


@pytest.mark.parametrize(
    ("node", "park"),
    [(lambda: None, "terminal"), (lambda: Sleep(5), "at"), (lambda n=None: Interrupt("n"), "external")],
    ids=["terminal", "at", "external"],
)
def test_any_other_disposition_wins_over_the_budget(node: Any, park: str) -> None:
    rig = Rig(drain_max_moments=1, drain_max_elapsed=0.001)
    rig.start(single(lambda **fields: rig.clock.advance(1.0) and node(**fields)))
    assert rig.drain() == Parked(park=park)  # type: ignore[arg-type]
    assert [fact.boundary for fact in rig.reported(DrainFinished)] == [None]


def test_time_for_loading_does_not_count_against_the_budget() -> None:
    rig = Rig(drain_max_elapsed=10.0)
    rig.start(line(2))
    rig.graphs.plan("fetch_graph", lambda: rig.clock.advance(20.0))
    assert rig.drain() == Parked(park="terminal")
    assert rig.reported(DrainFinished)[-1].elapsed == 0.0


def test_the_budget_begins_anew_with_each_claim() -> None:
    rig = Rig(drain_max_moments=1)
    rig.start(line(3))
    outcomes = [rig.drain() for _ in range(3)]
    assert outcomes == [Parked(park="immediate", boundary="max_moments")] * 2 + [Parked(park="terminal")]


def test_a_vehicle_whose_worker_stops_finishes_its_moment_and_parks_at_once() -> None:
    stopping = iter([False, True])
    rig = Rig()
    rig.start(line(3))
    outcome = rig.vehicle(stopping=lambda: next(stopping)).drain(rig.lease())
    assert outcome == Parked(park="immediate", boundary="stopping")
    assert (rig.run().checkpoint_seq, rig.info().claim_attempts) == (2, 0)


def test_a_vehicle_whose_worker_has_stopped_begins_nothing_and_costs_nothing() -> None:
    rig = Rig()
    rig.start(line(3))
    before = rig.info()
    outcome = rig.vehicle(stopping=lambda: True).drain(rig.lease())
    assert str(outcome) == "released: the worker is stopping"
    assert rig.info() == before


# -- the report ---------------------------------------------------------------------------------------------------


def test_each_drain_is_reported_once_with_its_figures() -> None:
    rig = Rig()
    rig.start(line(2).node("slow", rig.takes(3.0)).edge(START, "slow"))
    lease = rig.lease()
    rig.clock.advance(4.0)
    rig.drain(lease)
    (fact,) = rig.reported(DrainFinished)
    assert (fact.run_id, fact.graph_id, fact.claim_attempt, fact.outcome) == ("run-1", "line", 1, "parked")
    assert (fact.committed_moments, fact.elapsed, fact.claim_held) == (2, 3.0, 7.0)
    assert fact.detail == "parked:terminal"


def test_a_hook_that_raises_stops_no_vehicle() -> None:
    rig = Rig()
    rig.start(line(1))

    def broken(fact: object) -> None:
        raise RuntimeError("hook")

    rig.engine.hooks.add(broken)
    assert rig.drain() == Parked(park="terminal")


class SteppingClock(ManualClock):
    """A clock whose wall time can be set while its monotonic time goes on."""

    offset = timedelta(0)

    def now(self) -> datetime:
        return super().now() + self.offset


# -- clocks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("skew", [timedelta(minutes=10), timedelta(minutes=-10), timedelta(days=-3650)], ids=str)
def test_the_workers_wrong_clock_changes_nothing(skew: timedelta) -> None:
    wrong = ManualClock(NOON + skew)
    rig = Rig(worker_clock=wrong)

    def fails_once(ctx: Any) -> None:
        if ctx.attempt == 1:
            raise OSError("again")

    rig.start(single(fails_once, retry=Retry(max_attempts=2, backoff=2.0)))
    assert rig.drain() == Parked(park="at")
    assert rig.info().wake_at == NOON + timedelta(seconds=2)
    rig.advance(2.0)
    assert rig.drain() == Parked(park="terminal")
    assert {event.at for event in rig.events()} == {NOON, NOON + timedelta(seconds=2)}


def test_the_vehicles_now_goes_on_with_its_own_monotonic_time_between_two_readings() -> None:
    rig = Rig(worker_clock=ManualClock(NOON + timedelta(hours=5)))

    def works() -> Sleep:
        rig.advance(7.0)
        return Sleep(1)

    rig.start(single(works))
    rig.drain()
    assert rig.info().wake_at == NOON + timedelta(seconds=8)


def test_a_store_clock_that_steps_back_loses_no_order() -> None:
    clock = SteppingClock(NOON)
    rig = Rig(clock=clock, drain_max_moments=1)
    rig.start(line(6))
    for number in range(6):
        if number == 3:
            clock.offset = timedelta(hours=-1)
            rig.state.runs["run-1"].wake_at = rig.clock.now()
        rig.drain()
    assert rig.run().status is RunStatus.DONE
    assert rig.run().output == {"log": [f"s{number}" for number in range(1, 7)]}
    assert [event.seq for event in rig.events()] == list(range(1, len(rig.events()) + 1))
