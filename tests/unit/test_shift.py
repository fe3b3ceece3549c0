"""One slot's shift: its lease or nudge, what it takes on afterwards, when it ends, and whom it leaves the rest to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest
from support.faults import Fault, unreachable
from support.rig import Rig

from docket_celery import START, Graph, Retry, Sleep
from docket_celery.dispatcher import Dispatcher
from docket_celery.errors import ClaimInvariant, NotFound, StoreUnavailable
from docket_celery.executors import FencedExecutor
from docket_celery.run.document import RunStatus
from docket_celery.shift import Shift, ShiftReport
from docket_celery.storage.contracts.claims import Lease
from docket_celery.telemetry.hook import DrainFinished, LeasesGranted, VehicleCrashed
from docket_celery.vehicle.outcomes import FenceLost, Parked

DONE = Parked(park="terminal")


@dataclass(slots=True)
class Published:
    """A broker that only remembers."""

    leases: list[Lease] = field(default_factory=list)

    def __call__(self, leases: Sequence[Lease]) -> int:
        self.leases += leases
        return len(leases)


def quick(name: str = "quick", function: object = lambda: None) -> Graph:
    return Graph(name).node("a", function).edge(START, "a")  # type: ignore[arg-type]


@pytest.fixture
def published() -> Published:
    return Published()


def a_shift(rig: Rig, published: Published, stopping: object = lambda: False) -> Shift:
    return Shift(rig.engine, Dispatcher(rig.engine, published), stopping=stopping)  # type: ignore[arg-type]


def statuses(rig: Rig, count: int) -> list[str]:
    return [rig.run(f"run-{number}").status.value for number in range(1, count + 1)]


def test_a_slot_goes_on_with_the_next_due_run_until_none_is_left(published: Published) -> None:
    rig = Rig()
    for _ in range(4):
        rig.start(quick())
    report = a_shift(rig, published).work(rig.lease())
    assert report == ShiftReport(outcome=DONE, refilled=3)
    assert str(report) == "parked:terminal (+3 more)"
    assert statuses(rig, 4) == ["done"] * 4
    assert published.leases == []


def test_a_slot_begins_no_further_run_once_its_time_is_up_and_leaves_one_lease_behind(published: Published) -> None:
    rig = Rig(vehicle_max_elapsed=25.0)
    for _ in range(6):
        rig.start(quick(function=rig.takes(10.0)))
    report = a_shift(rig, published).work(rig.lease())
    assert report.refilled == 2
    assert statuses(rig, 6).count("done") == 3
    assert len(published.leases) == 1
    assert rig.info(published.leases[0].run_id).claim_attempts == 0


def fails(*, retry: Retry | None = None) -> Graph:
    def node() -> None:
        raise ValueError("the connection is closed")

    return Graph("fails").node("a", node, retry=retry).edge(START, "a")


def test_after_a_node_that_failed_the_slot_goes_on_in_a_task_of_its_own(published: Published) -> None:
    rig = Rig()
    rig.start(fails())
    for _ in range(3):
        rig.start(quick())
    shift = a_shift(rig, published)
    assert shift.work(rig.lease()) == ShiftReport(outcome=DONE)
    assert statuses(rig, 4) == ["failed", "running", "running", "running"]
    (lease,) = published.leases
    assert rig.info(lease.run_id).claim_attempts == 0
    assert a_shift(rig, published).work(lease).refilled == 2
    assert statuses(rig, 4) == ["failed", "done", "done", "done"]


def test_after_a_node_that_failed_the_slot_goes_on_where_nothing_is_put_in_order_between_two_tasks(
    published: Published,
) -> None:
    rig = Rig()
    rig.start(fails())
    for _ in range(3):
        rig.start(quick())
    shift = Shift(rig.engine, Dispatcher(rig.engine, published), is_tidied=lambda: False)
    assert shift.work(rig.lease()) == ShiftReport(outcome=DONE, refilled=3)
    assert statuses(rig, 4) == ["failed", "done", "done", "done"]
    assert published.leases == []


def test_after_a_node_that_failed_in_a_helper_thread_the_slot_goes_on(published: Published) -> None:
    """What is put in order between two tasks is that of the task's own thread; the helper is not used again."""
    rig = Rig(executor=lambda clock: FencedExecutor(clock.monotonic))
    rig.start(fails())
    for _ in range(3):
        rig.start(quick())
    assert a_shift(rig, published).work(rig.lease()) == ShiftReport(outcome=DONE, refilled=3)
    assert statuses(rig, 4) == ["failed", "done", "done", "done"]


def test_an_attempt_is_repeated_in_a_task_of_its_own_however_soon_it_is_due(published: Published) -> None:
    rig = Rig()
    rig.start(fails(retry=Retry(max_attempts=3, backoff=0.0)))
    tasks = [rig.lease()]
    for lease in tasks:
        assert a_shift(rig, published).work(lease).refilled == 0
        tasks += published.leases
        published.leases.clear()
    assert len(tasks) == 3
    assert statuses(rig, 1) == ["failed"]


def test_a_slot_that_refills_through_the_broker_publishes_a_lease_for_each_run(published: Published) -> None:
    rig = Rig(refill="broker")
    for _ in range(3):
        rig.start(quick())
    shift = a_shift(rig, published)
    assert shift.work(rig.lease()).refilled == 0
    assert [len(published.leases), statuses(rig, 3).count("done")] == [1, 1]
    while published.leases:
        shift.work(published.leases.pop())
    assert statuses(rig, 3) == ["done"] * 3


def test_a_lease_with_nothing_to_redeem_ends_the_shift_at_once(published: Published) -> None:
    rig = Rig()
    rig.start(quick())
    rig.start(quick())
    lease = rig.lease()
    rig.verbs.cancel_run(lease.run_id)
    assert a_shift(rig, published).work(lease) == ShiftReport(outcome=FenceLost())
    assert sorted(statuses(rig, 2)) == ["cancelled", "running"]


def test_a_slot_whose_worker_stops_takes_on_nothing_and_nudges_whoever_is_left(published: Published) -> None:
    rig = Rig()
    for _ in range(3):
        rig.start(quick())
    rig.nudges.after.clear()
    stopped: list[bool] = []
    rig.runs.plan("commit", lambda: stopped.append(True))
    report = a_shift(rig, published, stopping=lambda: bool(stopped)).work(rig.lease())
    assert report == ShiftReport(outcome=DONE)
    assert statuses(rig, 3).count("running") == 2
    assert (published.leases, rig.nudges.after) == ([], [0.0])


def test_a_nudge_sends_the_other_leases_out_before_its_own_run_begins(published: Published) -> None:
    rig = Rig(max_in_flight=3)
    out_by_then: list[int] = []
    for _ in range(4):
        rig.start(quick(function=lambda: out_by_then.append(len(published.leases))))
    found: list[int] = []
    report = a_shift(rig, published).answer(found=lambda: found.append(len(out_by_then)))
    assert found == [0]
    assert out_by_then[0] == 2
    # The one that nobody was free for is what its slot goes on to.
    assert report.shift == ShiftReport(outcome=DONE, refilled=1)
    assert str(report) == "claimed 3; graph=quick run=run-1 parked:terminal (+1 more)"
    assert [rig.drain(lease) for lease in published.leases] == [DONE] * 2
    assert statuses(rig, 4) == ["done"] * 4


def test_a_nudge_claims_no_more_than_there_are_slots_its_own_among_them(published: Published) -> None:
    rig = Rig(max_in_flight=2)
    for _ in range(3):
        rig.start(quick())
    rig.lease()
    assert str(a_shift(rig, published).answer()) == "claimed 1; graph=quick run=run-2 parked:terminal (+1 more)"
    assert published.leases == []


def test_a_nudge_about_one_run_alone_takes_it_without_a_scan_and_goes_on(published: Published) -> None:
    rig = Rig()

    def starts_another() -> None:
        rig.start(quick(name="another"))

    rig.start(quick(function=starts_another))
    report = a_shift(rig, published).answer()
    assert str(report) == "claimed 1; graph=quick run=run-1 parked:terminal (+1 more)"
    assert (rig.runs.count("claim_due"), rig.runs.count("redeem_claim")) == (0, 0)
    assert [fact.leases for fact in rig.reported(LeasesGranted)] == [1, 1]
    assert (statuses(rig, 2), published.leases) == (["done"] * 2, [])


def test_the_time_that_hooks_take_before_a_run_taken_alone_begins_is_not_lost(published: Published) -> None:
    rig = Rig()
    rig.start(quick(function=lambda: Sleep(10)))
    rig.engine.hooks.add(lambda fact: rig.advance(5) if isinstance(fact, LeasesGranted) else None)
    a_shift(rig, published).answer()
    assert rig.info("run-1").wake_at == rig.clock.now() + timedelta(seconds=10)


@pytest.mark.parametrize("way", ["take_alone", "commit", "take_due"])
def test_who_is_next_is_given_back_uncounted_when_the_process_is_ended_before_it_begins(
    published: Published, way: str
) -> None:
    rig = Rig()
    rig.start(quick())
    shift = a_shift(rig, published)
    if way != "take_alone":
        first = rig.lease()
    if way == "commit":
        rig.start(quick())

    def ends(fact: object) -> None:
        if isinstance(fact, DrainFinished) and way == "take_due":
            rig.start(quick())
        if isinstance(fact, LeasesGranted):
            raise SystemExit

    rig.engine.hooks.add(ends)
    with pytest.raises(SystemExit):
        shift.answer() if way == "take_alone" else shift.work(first)
    info = rig.info("run-1" if way == "take_alone" else "run-2")
    assert (info.claimed_at, info.claim_attempts, info.run.status) == (None, 0, RunStatus.RUNNING)


def test_a_nudge_that_finds_nothing_ends_at_once(published: Published) -> None:
    rig = Rig()
    assert str(a_shift(rig, published).answer(found=pytest.fail)) == "nothing to claim"
    assert rig.runs.count("take_due") == 0


def test_a_nudge_tells_what_it_stole_and_what_it_halted(published: Published) -> None:
    rig = Rig(max_in_flight=10, max_claim_attempts=2)
    for _ in range(2):
        rig.start(quick())
        for lease in rig.leases():
            rig.runs.redeem_claim(lease, token=rig.ids.token())
        rig.expire()
    report = str(a_shift(rig, published).answer())
    assert report == "claimed 1, 1 stolen, 1 poisoned; graph=quick run=run-2 parked:terminal"


@pytest.mark.parametrize(("due", "asked"), [(1, "take_alone"), (2, "claim_due")])
def test_a_nudge_for_which_the_database_is_away_ends_in_peace(
    published: Published, caplog: pytest.LogCaptureFixture, due: int, asked: str
) -> None:
    rig = Rig()
    for _ in range(due):
        rig.start(quick())
    rig.runs.plan(asked, unreachable())
    assert str(a_shift(rig, published).answer()) == "unanswered"
    assert "could not claim for a nudge" in caplog.text


def test_a_nudge_in_a_fleet_that_refills_through_the_broker_hands_on(published: Published) -> None:
    rig = Rig(refill="broker")
    for _ in range(2):
        rig.start(quick())
    report = a_shift(rig, published).answer()
    assert report.shift == ShiftReport(outcome=DONE)
    assert [len(published.leases), statuses(rig, 2).count("done")] == [1, 1]


def test_the_crash_of_a_nudges_own_run_fails_the_task_after_the_slot_was_handed_on(published: Published) -> None:
    rig = Rig(max_in_flight=10)
    for _ in range(2):
        rig.start(quick())
    rig.graphs.plan("fetch_graph", Fault(error=NotFound("gone")))
    with pytest.raises(ClaimInvariant):
        a_shift(rig, published).answer()
    assert len(published.leases) == 1


def test_the_first_leases_crash_fails_the_task_after_the_slot_was_handed_on(published: Published) -> None:
    # The crashed run's claim counts until it expires.
    rig = Rig(max_in_flight=10)
    rig.start(quick())
    rig.start(quick())
    rig.graphs.plan("fetch_graph", Fault(error=NotFound("gone")))
    with pytest.raises(ClaimInvariant):
        a_shift(rig, published).work(rig.lease())
    assert len(published.leases) == 1


def test_a_further_runs_crash_is_loud_and_counted_and_costs_the_others_nothing(
    published: Published, caplog: pytest.LogCaptureFixture
) -> None:
    # The crashed run's claim counts until it expires.
    rig = Rig(max_in_flight=10)
    for name in ("one", "two", "three"):
        rig.start(quick(name))
    rig.graphs.plan("fetch_graph", None, Fault(error=NotFound("gone")))
    report = a_shift(rig, published).work(rig.lease())
    assert report == ShiftReport(outcome=DONE, refilled=2, crashed=1)
    assert str(report) == "parked:terminal (+2 more), 1 crashed"
    assert sorted(statuses(rig, 3)) == ["done", "done", "running"]
    assert len(rig.reported(VehicleCrashed)) == 1
    assert "crashed its vehicle" in caplog.text
    assert "ClaimInvariant" in caplog.text


def test_an_order_to_end_the_process_ends_the_shift(published: Published) -> None:
    rig = Rig()
    rig.start(quick())
    rig.start(quick())
    rig.runs.plan("commit", None, Fault(error=SystemExit()))
    with pytest.raises(SystemExit):
        a_shift(rig, published).work(rig.lease())
    assert published.leases == []


@pytest.mark.parametrize("refill", ["direct", "broker"])
def test_a_database_that_goes_away_between_two_runs_ends_the_shift_in_peace(refill: str, published: Published) -> None:
    rig = Rig(refill=refill)
    rig.start(quick())
    rig.start(quick())
    lease = rig.lease()
    rig.runs.plan("take_due" if refill == "direct" else "claim_due", unreachable())
    came_along = 1 if refill == "direct" else 0
    assert a_shift(rig, published).work(lease) == ShiftReport(outcome=DONE, refilled=came_along)


def test_the_next_run_comes_along_with_the_commit_that_frees_the_slot(published: Published) -> None:
    rig = Rig()
    for _ in range(3):
        rig.start(quick())
    assert a_shift(rig, published).work(rig.lease()).refilled == 2
    assert rig.runs.count("take_due") == 1  # The one that finds that nothing is due any more.
    assert sum(fact.leases for fact in rig.reported(LeasesGranted)) == 2


def test_the_lease_that_a_slot_hands_on_comes_along_with_the_commit_that_frees_it(published: Published) -> None:
    rig = Rig(refill="broker")
    for _ in range(2):
        rig.start(quick())
    lease = rig.lease()
    assert a_shift(rig, published).work(lease) == ShiftReport(outcome=DONE)
    assert rig.runs.count("claim_due") == 1  # The test's own.
    assert [lease.run_id for lease in published.leases] == ["run-2"]
    assert rig.info("run-2").claim_attempts == 0
    assert sum(fact.leases for fact in rig.reported(LeasesGranted)) == 1


def test_a_lease_that_came_along_and_cannot_go_out_is_given_back() -> None:
    rig = Rig(refill="broker")
    for _ in range(2):
        rig.start(quick())
    shift = Shift(rig.engine, Dispatcher(rig.engine, lambda leases: 0))
    shift.work(rig.lease())
    assert (rig.info("run-2").claimed_at, rig.info("run-2").wake_at) == (None, rig.clock.now())


def test_a_lease_that_came_along_is_given_back_by_a_worker_that_stops(published: Published) -> None:
    rig = Rig(refill="broker")
    for _ in range(2):
        rig.start(quick())
    rig.nudges.after.clear()
    stopped: list[bool] = []
    rig.engine.hooks.add(lambda fact: stopped.append(True) if isinstance(fact, DrainFinished) else None)
    a_shift(rig, published, stopping=lambda: bool(stopped)).work(rig.lease())
    assert (published.leases, rig.nudges.after) == ([], [0.0])
    assert (rig.info("run-2").claimed_at, rig.info("run-2").claim_attempts) == (None, 0)


def test_a_slot_that_nobody_came_along_to_hands_on_in_the_same_turn(published: Published) -> None:
    rig = Rig(refill="broker")
    for _ in range(2):
        rig.start(quick())
        a_shift(rig, published).work(rig.lease())
    dispatcher = Dispatcher(rig.engine, published)
    shift = Shift(rig.engine, dispatcher)
    for _ in range(3):
        rig.start(quick())
        lease = rig.lease()
        rig.runs.calls.clear()
        shift.work(lease)
        ((asked, _),) = rig.runs.of("claim_due")
        ((_, committed),) = rig.runs.of("commit")
        assert asked[0].preference == committed["take"].policy.preference


@pytest.mark.parametrize("refill", ["direct", "broker"])
def test_who_came_along_is_given_back_uncounted_when_the_shift_is_ended_from_outside(
    refill: str, published: Published
) -> None:
    rig = Rig(refill=refill)
    rig.start(quick())
    rig.start(quick())

    def ends_the_process(fact: object) -> None:
        if isinstance(fact, DrainFinished):
            raise SystemExit

    shift = Shift(replace(rig.engine, hooks=ends_the_process), Dispatcher(rig.engine, published))  # type: ignore[arg-type]
    with pytest.raises(SystemExit):
        shift.work(rig.lease())
    assert statuses(rig, 2) == ["done", "running"]
    info = rig.info("run-2")
    assert (info.claimed_at, info.claim_attempts) == (None, 0)


def test_who_came_along_and_waited_too_long_is_given_back_unbegun(published: Published) -> None:
    rig = Rig()
    rig.start(quick())
    rig.start(quick())
    late = rig.engine.orphan_ttl.total_seconds() / 2

    def is_slow(fact: object) -> None:
        if isinstance(fact, DrainFinished) and fact.run_id == "run-1":
            rig.clock.advance(late)

    executed: list[str] = []
    rig.start(quick(function=lambda ctx: executed.append(ctx.run_id)))
    shift = Shift(replace(rig.engine, hooks=is_slow), Dispatcher(rig.engine, published))  # type: ignore[arg-type]
    shift.work(rig.lease())
    assert rig.info("run-2").claim_attempts == 0
    assert statuses(rig, 3) == ["done"] * 3


def test_no_two_runs_of_a_slot_are_held_under_one_token(published: Published) -> None:
    rig = Rig(max_in_flight=10)
    for name in ("one", "two", "three", "four"):
        rig.start(quick(name))
    # Of those that crash, the claim is still out when the slot goes on.
    rig.graphs.plan("fetch_graph", None, *[Fault(error=NotFound("gone"))] * 2)
    a_shift(rig, published).work(rig.lease())
    assert len({held.run_id for held in rig.holds.seen}) == len({held.token for held in rig.holds.seen}) == 4


def test_the_time_that_hooks_take_before_who_came_along_begins_is_not_lost(published: Published) -> None:
    rig = Rig()
    rig.start(quick())
    rig.start(quick("timer", lambda: Sleep(10)))

    def is_slow(fact: object) -> None:
        if isinstance(fact, DrainFinished) and fact.run_id == "run-1":
            rig.advance(5)

    rig.engine.hooks.add(is_slow)
    a_shift(rig, published).work(rig.lease())
    assert rig.info("run-2").wake_at == rig.clock.now() + timedelta(seconds=10)


def test_a_database_that_is_away_for_the_first_lease_ends_the_shift(published: Published) -> None:
    rig = Rig()
    rig.start(quick())
    lease = rig.lease()
    rig.runs.always("redeem_claim", unreachable)
    assert a_shift(rig, published).work(lease).outcome.kind == "unreached"
    assert rig.runs.count("claim_due") == 1


def test_a_crash_while_the_database_is_away_still_shows_the_crash(published: Published) -> None:
    rig = Rig()
    rig.start(quick())
    lease = rig.lease()
    rig.runs.plan("commit", Fault(error=AssertionError("a bug")))
    rig.runs.plan("claim_due", Fault(error=StoreUnavailable("away")))
    with pytest.raises(AssertionError, match="a bug"):
        a_shift(rig, published).work(lease)


def test_refills_prefer_ready_and_expired_runs_in_turn(published: Published) -> None:
    rig = Rig()
    dispatcher = Dispatcher(rig.engine, published)
    for _ in range(4):
        dispatcher.refill()
    dispatcher.hand_on()
    asked = rig.runs.of("take_due") + rig.runs.of("claim_due")
    preferences = [arguments[0].preference for arguments, _ in asked]
    assert preferences == ["ready", "expired", "ready", "expired", "ready"]


def test_a_run_that_used_up_its_drain_budget_comes_back_behind_the_others(published: Published) -> None:
    rig = Rig(drain_max_moments=1)
    order: list[str] = []
    for name in ("one", "two"):
        graph = Graph(name).node("a", lambda ctx: order.append(ctx.run_id)).edge(START, "a")
        rig.start(graph.node("b", lambda ctx: order.append(ctx.run_id)).edge("a", "b"))
        rig.clock.advance(0.001)
    rig.runs.plan("commit", *[lambda: rig.clock.advance(0.001)] * 2)  # type: ignore[list-item]
    a_shift(rig, published).work(rig.lease())
    assert order == ["run-1", "run-2", "run-1", "run-2"]
    assert rig.run("run-2").status is RunStatus.DONE
