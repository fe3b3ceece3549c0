"""A vehicle whose redemption left values behind: it reads what a step needs, under its fence, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from support.faults import Fault, lost_reply, unreachable
from support.rig import Rig

from docket_celery import FINISH, START, Graph
from docket_celery.dispatcher import Dispatcher
from docket_celery.errors import CorruptRecord, RowRefused
from docket_celery.run.document import RunStatus
from docket_celery.shift import Shift
from docket_celery.storage.contracts.claims import ClaimPolicy
from docket_celery.telemetry.hook import MomentCommitted
from docket_celery.testing import ManualClock
from docket_celery.vehicle.outcomes import Abandoned, Discarded, Parked, Unreached

BIG = ["untouched"]


def beside(**nodes: Any) -> Graph:
    """These nodes in a line, beside `big`, which they may touch, a log and a number."""
    graph = Graph("beside").field("big", Any, default=BIG).field("n", int, default=0)
    graph = graph.field("total", int, reducer="sum").field("log", list[str], reducer="append")
    for source, target in zip([START, *nodes], [*nodes, FINISH], strict=True):
        graph = graph.edge(source, target)
    for name, function in nodes.items():
        graph = graph.node(name, function)
    return graph


def logs() -> dict[str, str]:
    return {"log": "logged"}


def counts(n: int) -> dict[str, int]:
    return {"n": n + 1}


def adds() -> dict[str, int]:
    return {"total": 5}


def looks(big: list[str]) -> dict[str, Any]:
    return {"log": big}


def read_by(rig: Rig) -> list[set[str]]:
    """What was asked for, call by call."""
    return [set(names) for (_, _, names), _ in rig.runs.of("read_values")]


def test_a_run_beside_a_value_that_nobody_touches_never_reads_it() -> None:
    rig = Rig(leaves=True)
    rig.start(beside(a=logs, b=logs, c=logs))
    assert rig.drain() == Parked(park="terminal")
    assert read_by(rig) == []
    assert rig.run().output == {"big": BIG, "n": 0, "total": 0, "log": ["logged"] * 3}


def test_a_value_is_read_once_and_kept_for_the_rest_of_the_drain() -> None:
    rig = Rig(leaves=True)
    rig.start(beside(a=counts, b=counts, c=looks, d=looks))
    rig.drain()
    assert read_by(rig) == [{"n"}, {"big"}]
    assert rig.run().output == {"big": BIG, "n": 2, "total": 0, "log": [*BIG, *BIG]}


def test_each_claim_reads_anew() -> None:
    rig = Rig(leaves=True, drain_max_moments=1)
    rig.start(beside(a=counts, b=counts, c=adds))
    for _ in range(3):
        rig.drain()
    assert read_by(rig) == [{"n"}, {"n"}, {"total"}]
    assert rig.run().output == {"big": BIG, "n": 2, "total": 5, "log": []}


def test_a_run_that_was_taken_reads_like_one_that_was_redeemed() -> None:
    rig = Rig(leaves=True)
    rig.start(beside(a=counts))
    policy = ClaimPolicy(limit=1, orphan_ttl=rig.engine.orphan_ttl, max_claim_attempts=3)
    rig.vehicle().drive(rig.runs.take_due(policy, token="mine"), asked_at=0.0)
    assert read_by(rig) == [{"n"}]
    assert rig.run().output["n"] == 1


def test_a_run_that_came_along_with_a_commit_reads_like_any_other() -> None:
    rig = Rig(leaves=True)
    graph = beside(a=counts)
    for _ in range(3):
        rig.start(graph)
    report = Shift(rig.engine, Dispatcher(rig.engine, len)).work(rig.lease())
    assert report.refilled == 2
    assert read_by(rig) == [{"n"}] * 3
    assert [rig.run(f"run-{number}").output["n"] for number in (1, 2, 3)] == [1, 1, 1]


@pytest.mark.parametrize("fault", [unreachable, lost_reply])
@pytest.mark.parametrize("node", [counts, adds])
def test_reading_is_repeated_while_the_claim_lasts(fault: Any, node: Any) -> None:
    rig = Rig(leaves=True)
    rig.start(beside(a=node))
    rig.runs.plan("read_values", fault(), fault())
    assert rig.drain() == Parked(park="terminal")
    assert (len(read_by(rig)), len(rig.pauses)) == (3, 2)


def test_reading_ends_with_the_claims_time() -> None:
    rig = Rig(leaves=True)
    rig.start(beside(a=counts))
    rig.runs.always("read_values", unreachable)
    assert isinstance(rig.drain(), Unreached)
    assert sum(rig.pauses) <= rig.engine.config.orphan_ttl
    rig.runs.always("read_values", lambda: None)
    rig.expire()
    assert rig.drain() == Parked(park="terminal")


@pytest.mark.parametrize("node", [counts, adds], ids=["input", "reducer"])
def test_a_fence_that_moved_before_the_read_is_a_lost_fence(node: Any) -> None:
    rig = Rig(leaves=True)
    rig.start(beside(a=node))
    rig.runs.plan("read_values", lambda: rig.verbs.cancel_run("run-1"))
    assert isinstance(rig.drain(), Discarded)
    assert rig.run().status is RunStatus.CANCELLED
    assert rig.run().fields["n"] == 0


def test_a_run_that_was_stolen_before_the_read_is_left_to_the_thief() -> None:
    rig = Rig(leaves=True)
    rig.start(beside(a=counts))

    def steal() -> None:
        rig.expire()
        assert rig.drain() == Parked(park="terminal")

    rig.runs.plan("read_values", steal)
    assert isinstance(rig.drain(), Discarded)
    assert (rig.run().status, rig.run().fields["n"]) == (RunStatus.DONE, 1)


@pytest.mark.parametrize("node", [counts, adds], ids=["input", "reducer"])
def test_a_value_that_cannot_be_decoded_hands_the_run_back(node: Any) -> None:
    rig = Rig(leaves=True, max_claim_abandons=1, abandon_backoff=1.0)
    rig.start(beside(a=logs, b=node))
    rig.runs.always("read_values", lambda: Fault(error=CorruptRecord("field 'n' cannot be read")))
    assert rig.drain() == Abandoned(disposition="rescheduled", reason="field 'n' cannot be read")
    assert rig.run().fields["log"] == ["logged"]
    rig.advance(2.0)
    assert rig.drain() == Abandoned(disposition="poisoned", reason="field 'n' cannot be read")


def test_who_needs_values_is_told_of_whole_runs_and_others_cost_nothing() -> None:
    rig = Rig(leaves=True)
    rig.start(beside(a=logs, b=logs, c=logs))
    told: list[dict[str, Any]] = []
    rig.engine.hooks.add(
        lambda fact: told.append(fact.moment.run.output) if isinstance(fact, MomentCommitted) else None,
        needs_values=lambda moment: moment.run.step >= 3,
    )
    rig.drain()
    assert read_by(rig) == [{"big", "log", "n", "total"}]
    assert told == [{"big": BIG, "n": 0, "total": 0, "log": ["logged"] * number} for number in (2, 3)]
    first, *_ = [fact for fact in rig.reported(MomentCommitted) if fact.moment.run.checkpoint_seq == 2]
    with pytest.raises(ValueError, match="has not been read"):
        _ = first.moment.run.output


def test_a_run_whose_state_cannot_be_stored_fails_and_is_told_whole() -> None:
    rig = Rig(leaves=True)
    rig.start(beside(a=logs))
    rig.runs.plan("commit", Fault(error=RowRefused("too large")))
    rig.engine.hooks.add(lambda fact: None, needs_values=lambda moment: moment.run.status is RunStatus.FAILED)
    rig.drain()
    committed = rig.reported(MomentCommitted)[-1].moment.run
    assert committed.status is RunStatus.FAILED
    assert (committed, committed.output) == (rig.run(), {"big": BIG, "n": 0, "total": 0, "log": []})


def test_the_claim_is_worth_renewing_while_values_are_read() -> None:
    rig = Rig(leaves=True, worker_clock=ManualClock())
    rig.start(beside(a=counts))
    until: list[float] = []
    rig.runs.plan("read_values", lambda: until.append(rig.holds.now[0].until - rig.worker_clock.monotonic()))
    rig.drain()
    assert until == [30.0]
