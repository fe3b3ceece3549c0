"""The verbs: what they store, what they refuse, whom they wake, and how they meet what a vehicle is doing meanwhile."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from support.clock import NOON
from support.faults import Fault, unreachable
from support.rig import Rig

from docket_celery import START, Graph, Interrupt, Retry
from docket_celery.errors import (
    AwaitTimeout,
    ClaimInvariant,
    ConfigError,
    DocketError,
    InactiveRun,
    InvalidGraph,
    InvalidInput,
    KeyConflict,
    NotFound,
    RunPoisoned,
    StoreUnavailable,
)
from docket_celery.run.document import RunStatus
from docket_celery.run.events import EventType
from docket_celery.storage.contracts.values import TENANTLESS, GraphRef
from docket_celery.telemetry.hook import MomentCommitted
from docket_celery.vehicle.outcomes import Discarded


def node() -> None:
    """A node that workers could find."""


def asks(approved: bool | None = None) -> Any:
    return Interrupt("approved", schema=bool) if approved is None else None


QUICK = Graph("quick").input("n", int, default=0).node("a", node).edge(START, "a")
ASKING = Graph("asking").field("approved", bool).node("a", asks).edge(START, "a")


def broken() -> None:
    raise RuntimeError("at its end")


# -- graphs -------------------------------------------------------------------------------------------------------


def test_a_graph_is_verified_published_and_read_back() -> None:
    rig = Rig()
    rig.functions = {element.call: node for element in QUICK.nodes.values()}
    ref = rig.verbs.save_graph(QUICK)
    assert rig.verbs.save_graph(QUICK) == ref
    assert rig.verbs.fetch_graph(ref).to_dict() == QUICK.to_dict()
    assert [listed for listed, _ in rig.verbs.list_graph_versions("quick").versions] == [ref]
    assert [version.ref for version in rig.verbs.list_graphs()] == [ref]


def test_a_graph_with_an_unknown_node_is_not_stored_unless_its_code_need_not_be_here() -> None:
    rig = Rig()
    with pytest.raises(InvalidGraph, match=r"nodes\.a\.call"):
        rig.verbs.save_graph(QUICK)
    assert rig.verbs.list_graphs() == ()
    rig.verbs.save_graph(QUICK, check_nodes=False)
    assert len(rig.verbs.list_graphs()) == 1


# -- starting -----------------------------------------------------------------------------------------------------


def test_a_started_run_is_durable_reported_and_nudged() -> None:
    rig = Rig()
    run = rig.start(QUICK, {"n": 3})
    assert rig.verbs.fetch_run(run.id) == run
    (fact,) = rig.reported(MomentCommitted)
    assert (fact.moment.run, fact.tenant) == (run, None)
    assert rig.nudges.after == [0.0]


def test_a_run_can_be_started_by_graph_id_which_means_the_latest_version() -> None:
    rig = Rig()
    rig.publish(QUICK)
    latest = rig.publish(QUICK.output("n"))
    assert rig.verbs.start_run("quick").graph_hash == latest.graph_hash
    with pytest.raises(NotFound):
        rig.verbs.start_run("unheard-of")


def test_a_start_key_gives_one_run_and_no_second_nudge() -> None:
    rig = Rig()
    first = rig.start(QUICK, {"n": 1}, key="o-17")
    again = rig.start(QUICK, {"n": 1}, key="o-17")
    assert again == first
    assert rig.nudges.after == [0.0]
    assert len(rig.reported(MomentCommitted)) == 1
    with pytest.raises(KeyConflict):
        rig.start(QUICK, {"n": 2}, key="o-17")


def test_a_run_started_for_later_is_woken_then_and_nobody_is_nudged() -> None:
    rig = Rig()
    run = rig.start(QUICK, start_at=NOON + timedelta(hours=1))
    assert rig.info(run.id).wake_at == NOON + timedelta(hours=1)
    assert rig.nudges.after == []


@pytest.mark.parametrize("start_at", [datetime(2026, 1, 1), "tomorrow"], ids=["naive", "text"])
def test_a_start_time_without_a_zone_is_refused(start_at: Any) -> None:
    with pytest.raises(InvalidInput, match="start_at must be an aware datetime"):
        Rig().start(QUICK, start_at=start_at)


@pytest.mark.parametrize("input", [[], "", 0, False])
def test_only_a_mapping_or_nothing_is_an_input(input: Any) -> None:
    rig = Rig()
    with pytest.raises(InvalidInput, match="must be a mapping of fields"):
        rig.verbs.start_run(rig.publish(QUICK), input)


ENORMOUS = [10**5_000, "x" * 1_000_000]


@pytest.mark.parametrize("value", ENORMOUS, ids=["int", "text"])
@pytest.mark.parametrize(
    "ask",
    [
        lambda verbs, value: verbs.list_runs(limit=value),
        lambda verbs, value: verbs.list_runs(status=value),
        lambda verbs, value: verbs.list_runs(before=value),
        lambda verbs, value: verbs.list_events("run-1", after_seq=value),
        lambda verbs, value: verbs.list_graph_versions("g", before=value),
        lambda verbs, value: verbs.for_tenant(value),
        lambda verbs, value: verbs.drain(limit=[value]),
        lambda verbs, value: verbs.await_run("run-1", timeout=[value]),
        lambda verbs, value: verbs.cancel_run("run-1", reason=[value]),
        lambda verbs, value: verbs.start_runs("quick", [None], keys=value),
        lambda verbs, value: verbs.start_run("quick", start_at=value),
    ],
)
def test_what_is_refused_is_quoted_at_short_length_whatever_it_is(ask: Any, value: Any) -> None:
    rig = Rig()
    rig.start(QUICK)
    with pytest.raises(DocketError) as raised:
        ask(rig.verbs, value)
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize("input", [{"m": 1}, {"n": "three"}, {"n": float("nan")}], ids=["unknown", "type", "nan"])
def test_an_input_that_does_not_fit_stores_nothing(input: dict[str, Any]) -> None:
    rig = Rig()
    with pytest.raises(InvalidInput):
        rig.start(QUICK, input)
    assert rig.verbs.list_runs().runs == ()


def test_starting_answering_and_cancelling_need_none_of_the_node_code() -> None:
    rig = Rig()
    run = rig.start(ASKING)
    rig.drain()
    rig.functions.clear()
    other = rig.verbs.start_run(GraphRef(graph_id=run.graph_id, graph_hash=run.graph_hash))
    rig.verbs.cancel_run(other.id)
    rig.verbs.resolve_interrupt(run.id, rig.run(run.id).interrupts[0].id, True)


def test_what_the_caller_does_to_the_input_afterwards_changes_nothing() -> None:
    rig = Rig()
    graph = Graph("g").input("items", list[int]).node("a", node).edge(START, "a")
    given = {"items": [1]}
    run = rig.start(graph, given)
    given["items"].append(2)
    assert rig.run(run.id).fields == {"items": [1]}


# -- reading ------------------------------------------------------------------------------------------------------


def test_runs_are_listed_newest_first_by_status_and_page() -> None:
    rig = Rig()
    for _ in range(3):
        rig.start(QUICK)
        rig.clock.advance(1.0)
    rig.verbs.cancel_run("run-2")
    assert [run.run_id for run in rig.verbs.list_runs(status="running").runs] == ["run-3", "run-1"]
    page = rig.verbs.list_runs(limit=2)
    assert page.has_more
    assert [run.run_id for run in rig.verbs.list_runs(limit=2, before=page.next_before).runs] == ["run-1"]
    with pytest.raises(InvalidInput, match="status must be one of"):
        rig.verbs.list_runs(status="asleep")


def test_a_tenants_verbs_see_the_tenants_runs_and_nothing_else() -> None:
    rig = Rig()
    rig.publish(QUICK, tenant="acme")
    acme, other = rig.verbs.for_tenant("acme"), rig.verbs.for_tenant("other")
    run = acme.start_run("quick")
    assert rig.reported(MomentCommitted)[0].tenant == "acme"
    for verbs in (other, rig.verbs):
        with pytest.raises(NotFound):
            verbs.fetch_run(run.id)
        with pytest.raises(NotFound):
            verbs.cancel_run(run.id)
    assert acme.for_tenant("acme").tenant == "acme"
    rig.drain()
    assert acme.fetch_run(run.id).status is RunStatus.DONE


def test_where_tenants_are_required_the_bare_verbs_refuse() -> None:
    rig = Rig(tenant_mode="required")
    with pytest.raises(ConfigError, match="for_tenant"):
        rig.verbs.list_runs()
    assert rig.verbs.for_tenant("acme").list_runs().runs == ()


# -- waiting ------------------------------------------------------------------------------------------------------


def test_waiting_ends_when_the_run_does_or_when_only_questions_are_left() -> None:
    rig = Rig()
    asking = rig.start(ASKING)
    quick = rig.start(QUICK)
    rig.runs.plan("inspect_run", None, rig.drain)  # type: ignore[arg-type]
    assert rig.verbs.await_run(asking.id).status is RunStatus.WAITING
    rig.runs.plan("inspect_run", None, None, rig.drain)  # type: ignore[arg-type]
    rig.pauses.clear()
    assert rig.verbs.await_run(quick.id).status is RunStatus.DONE
    assert rig.pauses == [0.01, 0.02]


def test_waiting_gives_up_exactly_when_told_to() -> None:
    rig = Rig()
    run = rig.start(QUICK)
    with pytest.raises(AwaitTimeout, match=r"run 'run-1' is still \w+ at step 1 after 2 s"):
        rig.verbs.await_run(run.id, timeout=2)
    assert sum(rig.pauses) == pytest.approx(2.0)
    assert max(rig.pauses) == 0.5
    with pytest.raises(AwaitTimeout):
        rig.verbs.await_run(run.id, timeout=0)


def test_a_timeout_beyond_every_clock_is_as_good_as_none() -> None:
    rig = Rig()
    run = rig.start(QUICK)
    rig.drain()
    assert rig.verbs.await_run(run.id, timeout=10**400).status is RunStatus.DONE


def test_waiting_for_a_poisoned_run_raises_with_its_info() -> None:
    rig = Rig(max_claim_attempts=1)
    run = rig.start(QUICK)
    rig.runs.redeem_claim(rig.lease(), token="dies")
    rig.expire()
    assert rig.verbs.drain() == 0
    with pytest.raises(RunPoisoned) as raised:
        rig.verbs.await_run(run.id)
    assert raised.value.info.run_id == run.id
    rig.nudges.after.clear()
    rig.verbs.retry_poisoned_run(run.id)
    assert rig.nudges.after == [0.0]
    assert rig.verbs.drain() == 1


# -- answers ------------------------------------------------------------------------------------------------------


def test_an_answer_makes_its_run_due_and_a_second_one_changes_nothing() -> None:
    rig = Rig()
    run = rig.start(ASKING)
    rig.drain()
    rig.nudges.after.clear()
    interrupt = rig.run().interrupts[0].id
    assert rig.verbs.resolve_interrupt(run.id, interrupt, True).status is RunStatus.RUNNING
    assert rig.nudges.after == [0.0]
    seq = rig.run().checkpoint_seq
    assert rig.verbs.resolve_interrupt(run.id, interrupt, False).checkpoint_seq == seq
    rig.drain()
    assert rig.run().fields == {"approved": True}
    rig.verbs.resolve_interrupt(run.id, interrupt, False)
    assert rig.nudges.after == [0.0]


def test_an_answer_reads_its_run_once_and_loads_an_unknown_version_while_the_run_is_not_held() -> None:
    rig = Rig()
    rig.start(ASKING)
    rig.drain()
    elsewhere = Rig(storage=rig.engine.storage, clock=rig.clock)
    interrupt = rig.run().interrupts[0].id
    elsewhere.graphs.plan("fetch_graph", lambda: rig.run("run-1"))
    elsewhere.verbs.resolve_interrupt("run-1", interrupt, True)
    assert (elsewhere.runs.count("mutate_run"), elsewhere.graphs.count("fetch_graph")) == (2, 1)
    elsewhere.verbs.resolve_interrupt("run-1", interrupt, True)
    assert (elsewhere.runs.count("mutate_run"), elsewhere.graphs.count("fetch_graph")) == (3, 1)
    assert elsewhere.runs.count("fetch_run") == 0


def test_an_answer_for_a_version_that_cannot_be_loaded_changes_nothing() -> None:
    rig = Rig()
    rig.start(ASKING)
    rig.drain()
    elsewhere = Rig(storage=rig.engine.storage, clock=rig.clock)
    interrupt = rig.run().interrupts[0].id
    elsewhere.graphs.plan("fetch_graph", unreachable())
    before = rig.info()
    with pytest.raises(StoreUnavailable):
        elsewhere.verbs.resolve_interrupt("run-1", interrupt, True)
    assert rig.info() == before
    elsewhere.verbs.resolve_interrupt("run-1", interrupt, True)
    assert rig.info() != before


@pytest.mark.parametrize(("interrupt", "answer", "error"), [("a@1.1", "yes", InvalidInput), ("x@1.1", True, NotFound)])
def test_an_answer_that_does_not_fit_leaves_the_run_as_it_is(interrupt: str, answer: Any, error: Any) -> None:
    rig = Rig()
    rig.start(ASKING)
    rig.drain()
    before = rig.info()
    with pytest.raises(error):
        rig.verbs.resolve_interrupt("run-1", interrupt, answer)
    assert rig.info() == before


# -- cancelling, against everything else --------------------------------------------------------------------------


def cancelled(rig: Rig) -> None:
    """The run is at its end: no wake, no claim, no open part, and one event says so."""
    info = rig.info()
    assert (info.run.status, info.wake_at, info.claimed_at) == (RunStatus.CANCELLED, None, None)
    assert (info.run.tasks, info.run.interrupts) == ((), ())
    assert [event.type for event in rig.events()].count(EventType.RUN_CANCELLED) == 1
    rig.advance(3_600.0)
    assert rig.verbs.drain() == 0


def retrying(node: Any) -> Graph:
    return Graph("retrying").node("a", node, retry=Retry(max_attempts=3, backoff=10.0)).edge(START, "a")


def test_a_cancel_while_a_node_fails_retryably_leaves_no_retry() -> None:
    rig = Rig()
    executions: list[int] = []

    def fails() -> None:
        executions.append(1)
        rig.verbs.cancel_run("run-1")
        raise OSError("again")

    rig.start(retrying(fails))
    assert isinstance(rig.drain(), Discarded)
    cancelled(rig)
    assert len(executions) == 1


def test_a_cancel_during_the_wait_for_a_retry_ends_it() -> None:
    rig = Rig()
    rig.start(retrying(broken))
    rig.drain()
    rig.advance(5.0)
    rig.verbs.cancel_run("run-1")
    cancelled(rig)


def test_a_poisoned_run_can_be_cancelled() -> None:
    rig = Rig(max_claim_attempts=1)
    rig.start(QUICK)
    rig.runs.redeem_claim(rig.lease(), token="dies")
    rig.expire()
    rig.verbs.drain()
    assert rig.info().poisoned_at is not None
    rig.verbs.cancel_run("run-1")
    assert rig.info().poisoned_at is None
    cancelled(rig)


@pytest.mark.parametrize("first", ["cancel", "answer"])
def test_a_cancel_and_an_answer_at_the_same_moment_end_cancelled(first: str) -> None:
    rig = Rig()
    rig.start(ASKING)
    rig.drain()
    interrupt = rig.run().interrupts[0].id
    if first == "cancel":
        rig.runs.plan("mutate_run", lambda: rig.verbs.cancel_run("run-1"))
        with pytest.raises(InactiveRun):
            rig.verbs.resolve_interrupt("run-1", interrupt, True)
    else:
        rig.runs.plan("mutate_run", lambda: rig.verbs.resolve_interrupt("run-1", interrupt, True))
        rig.verbs.cancel_run("run-1")
    cancelled(rig)


def test_cancelling_twice_while_the_node_itself_gives_up_ends_cancelled_once() -> None:
    rig = Rig()

    def gives_up() -> None:
        rig.verbs.cancel_run("run-1")
        rig.verbs.cancel_run("run-1")
        raise RuntimeError("cancelled")

    rig.start(retrying(gives_up))
    rig.drain()
    cancelled(rig)


def test_a_run_that_ended_otherwise_cannot_be_cancelled() -> None:
    rig = Rig()
    rig.start(QUICK)
    rig.drain()
    with pytest.raises(InactiveRun):
        rig.verbs.cancel_run("run-1")


# -- draining here ------------------------------------------------------------------------------------------------


def test_draining_here_takes_what_is_due_up_to_a_limit() -> None:
    rig = Rig()
    for _ in range(5):
        rig.start(QUICK)
    assert rig.verbs.drain(limit=2) == 2
    assert rig.verbs.drain() == 3


def test_a_run_that_crashes_its_vehicle_stops_no_other_and_is_raised_at_the_end() -> None:
    rig = Rig()
    for name in ("one", "two", "three"):
        rig.start(Graph(name).node("a", node).edge(START, "a"))
    rig.graphs.plan("fetch_graph", Fault(error=NotFound("gone")))
    with pytest.raises(ClaimInvariant):
        rig.verbs.drain()
    assert [rig.run(f"run-{number}").status.value for number in (1, 2, 3)] == ["running", "done", "done"]


def test_a_version_that_cannot_be_read_by_this_process_is_refused_with_the_reason() -> None:
    rig = Rig()
    ref = GraphRef(graph_id="g", graph_hash="a1" * 32)
    rig.graphs.save_graph(TENANTLESS, ref, {"format": 99})
    with pytest.raises(InvalidInput, match="cannot be used by this version"):
        rig.verbs.start_run(ref)


def test_a_database_that_is_away_is_heard_by_the_caller() -> None:
    rig = Rig()
    rig.runs.plan("insert_run", unreachable())
    with pytest.raises(StoreUnavailable):
        rig.start(QUICK)
    assert rig.nudges.after == []
