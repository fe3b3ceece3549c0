"""A vehicle over a bad wire: lost replies, a database away for a while, and what the time of the claim allows."""

from __future__ import annotations

from datetime import timedelta

import pytest
from support.clock import NOON
from support.faults import lost_reply, unreachable
from support.rig import Rig

from docket_celery import FINISH, START, Graph
from docket_celery.run.events import EventType
from docket_celery.telemetry.hook import DrainFinished, VehicleCrashed
from docket_celery.testing import ManualClock
from docket_celery.vehicle.drain import Drain
from docket_celery.vehicle.outcomes import Discarded, FenceLost, Parked, Unreached


def pair(first: object = lambda: {"n": 1}) -> Graph:
    return (
        Graph("pair")
        .field("n", int)
        .node("a", first)  # type: ignore[arg-type]
        .node("b", lambda n: {"n": n + 1})
        .edge(START, "a")
        .edge("a", "b")
        .edge("b", FINISH)
        .output("n")
    )


def a_drain(rig: Rig) -> Drain:
    def pause(seconds: float) -> None:
        rig.advance(seconds)

    monotonic = rig.clock.monotonic
    return Drain(lease=rig.lease(), token="ours", began=monotonic(), monotonic=monotonic, pause=pause)


def test_a_redemption_whose_reply_was_lost_is_repeated_with_the_same_token_and_counted_once() -> None:
    rig = Rig()
    rig.start(pair())
    rig.runs.plan("redeem_claim", lost_reply(), unreachable())
    attempts: list[int] = []
    rig.runs.plan("commit", lambda: attempts.append(rig.info().claim_attempts))
    assert rig.drain() == Parked(park="terminal")
    tokens = {keywords["token"] for _, keywords in rig.runs.of("redeem_claim")}
    assert (rig.runs.count("redeem_claim"), len(tokens), attempts) == (3, 1, [1])
    assert rig.reported(DrainFinished)[0].claim_attempt == 1


def test_a_redemption_that_never_gets_through_ends_when_a_claim_made_at_its_start_would() -> None:
    rig = Rig()
    rig.start(pair())
    rig.runs.always("redeem_claim", unreachable)
    assert rig.drain() == Unreached(reason="the database is away")
    assert 58.0 <= sum(rig.pauses) < 60.0
    assert rig.info().claim_attempts == 0
    assert rig.reported(VehicleCrashed) == []


def test_a_redemption_that_was_overtaken_while_the_database_was_away_has_lost_its_fence() -> None:
    rig = Rig()
    rig.start(pair())
    rig.runs.plan("redeem_claim", unreachable(), lambda: rig.verbs.cancel_run("run-1"))
    assert rig.drain() == FenceLost()


@pytest.mark.parametrize("which", [0, 1])
def test_a_commit_whose_reply_was_lost_is_recognised_as_its_own(which: int) -> None:
    rig = Rig()
    rig.start(pair())
    rig.runs.plan("commit", *[None] * which, lost_reply(), lost_reply())
    assert rig.drain() == Parked(park="terminal")
    assert rig.run().output == {"n": 2}
    proposals = [arguments[1] for arguments, _ in rig.runs.of("commit")]
    assert proposals[which] is proposals[which + 1] is proposals[which + 2]
    assert [event.type for event in rig.events()].count(EventType.STEP_COMMITTED) == 2


def test_a_commit_is_repeated_while_the_database_is_away_without_running_the_node_again() -> None:
    executions: list[int] = []

    def node() -> dict[str, int]:
        executions.append(1)
        return {"n": 1}

    rig = Rig()
    rig.start(pair(node))
    rig.runs.plan("commit", *[unreachable()] * 7)
    assert rig.drain() == Parked(park="terminal")
    assert len(executions) == 1
    assert rig.pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_nothing_is_repeated_past_the_claims_time() -> None:
    rig = Rig()
    rig.start(pair(rig.takes(50.0)))
    rig.runs.always("commit", unreachable)
    assert isinstance(rig.drain(), Unreached)
    assert sum(rig.pauses) < 10.0
    assert rig.run().checkpoint_seq == 1


def test_a_renewal_gives_a_commit_more_time() -> None:
    rig = Rig()

    def long_work() -> None:
        rig.advance(100.0)
        # What the renewing thread would do meanwhile.
        (held,) = rig.holds.now
        rig.runs.refresh_claim(held.run_id, held.token)
        held.renewed_at = rig.clock.monotonic()

    rig.start(Graph("long").node("a", long_work).edge(START, "a"))
    rig.runs.plan("commit", *[unreachable()] * 3)
    assert rig.drain() == Parked(park="terminal")
    assert rig.pauses == [0.05, 0.1, 0.2]


def test_a_repeated_commit_that_finds_the_run_stolen_is_discarded() -> None:
    rig = Rig()
    rig.start(pair())

    def steal() -> None:
        rig.expire()
        rig.runs.redeem_claim(rig.lease(), token="thief")

    rig.runs.plan("commit", unreachable(), steal)
    lease = rig.lease()
    assert isinstance(rig.drain(lease), Discarded)


def test_a_retaining_commit_that_kept_the_old_claim_time_leaves_only_the_rest_of_it() -> None:
    rig = Rig()
    graph = Graph("slow").node("a", rig.takes(15.0)).node("b", rig.takes(40.0)).edge(START, "a").edge("a", "b")
    rig.start(graph)
    rig.runs.plan("commit", None, *[unreachable()] * 100)
    assert isinstance(rig.drain(), Unreached)
    # Claimed at 0, kept at 15, second node until 55: five seconds were left.
    assert 3.0 < sum(rig.pauses) < 5.0


def test_the_database_clock_is_asked_for_once_a_second() -> None:
    rig = Rig(drain_max_elapsed=None)

    def ticks() -> dict[str, int]:
        rig.advance(0.3)
        return {"n": 1}

    graph = Graph("ticking", max_supersteps=9).field("n", int, reducer="sum").node("a", ticks).edge(START, "a")
    rig.start(graph.edge("a", "a", when="n < 8").edge("a", FINISH, when="n >= 8"))
    rig.drain()
    retained = [write.schedule for (_, write), _ in rig.runs.of("commit")][:-1]
    assert [schedule.quiet for schedule in retained] == [True, True, True, False, True, True, True]


def test_a_clock_that_stood_still_is_set_right_by_the_first_commit_after_a_second() -> None:
    rig = Rig(worker_clock=ManualClock())

    def sleeps() -> None:
        rig.clock.advance(15)  # The machine of the worker, and its monotonic clock with it.

    graph = Graph("asleep").node("a", sleeps).node("b", rig.takes(1.0)).node("c", lambda: None).edge(START, "a")
    rig.start(graph.edge("a", "b").edge("b", "c"))
    rig.drain()
    at = [event.at for event in rig.events() if event.type is EventType.NODE_COMPLETED]
    assert at == [NOON, NOON + timedelta(seconds=1), NOON + timedelta(seconds=16)]


def test_what_is_known_before_the_redemption_is_the_leases() -> None:
    rig = Rig()
    rig.start(pair())
    drain = a_drain(rig)
    rig.advance(3.0)
    assert (drain.claim_attempt, drain.checkpoint_seq, drain.elapsed, drain.claim_held) == (1, 1, 0.0, 3.0)
    assert drain.expires_at == 60.0


def test_a_redemption_is_the_first_renewal_and_a_commit_that_refreshes_the_claim_another() -> None:
    rig = Rig(drain_max_elapsed=None)
    graph = Graph("slow").node("a", rig.takes(40.0)).node("b", lambda: None).edge(START, "a").edge("a", "b")
    rig.start(graph)
    renewed_at: list[float] = []
    rig.runs.plan("commit", *[lambda: renewed_at.append(rig.holds.now[0].renewed_at)] * 2)
    rig.advance(3.0)
    rig.drain()
    assert renewed_at == [3.0, 43.0]


@pytest.mark.parametrize(("age", "left"), [(0.0, 60.0), (19.0, 41.0), (20.0, 40.0), (21.0, 60.0)])
def test_a_young_claim_has_left_what_its_lease_has_not_used_up(age: float, left: float) -> None:
    rig = Rig()
    rig.start(pair())
    lease = rig.lease()
    rig.advance(age)
    monotonic = rig.clock.monotonic
    drain = Drain(lease=lease, token="ours", began=monotonic(), monotonic=monotonic, pause=rig.advance)
    drain.redeemed(drain.within_claim(lambda: rig.runs.redeem_claim(lease, token="ours")))
    assert drain.expires_at - monotonic() == left


def test_time_on_the_wire_is_not_counted_as_claim_time() -> None:
    rig = Rig()
    rig.start(pair())
    drain = a_drain(rig)

    def slow() -> object:
        claim = rig.runs.redeem_claim(drain.lease, token=drain.token)
        rig.advance(4.0)
        return claim

    drain.redeemed(drain.within_claim(slow))  # type: ignore[arg-type]
    assert drain.expires_at == 60.0
