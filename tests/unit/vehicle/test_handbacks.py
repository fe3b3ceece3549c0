"""How a vehicle gives a claim back: what each way costs, when the run is woken, and that no loser disturbs a winner."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel, create_model, field_validator
from support.clock import NOON
from support.faults import Fault, lost_reply, unreachable
from support.rig import Rig

from docket_celery import START, Graph, Sleep
from docket_celery.errors import CorruptRecord, StoreUnavailable
from docket_celery.graph.elements import FieldInput
from docket_celery.run.document import RunStatus
from docket_celery.storage.contracts.rules import MAX_ABANDONS_REASON
from docket_celery.telemetry.hook import DrainFinished, RunsPoisoned
from docket_celery.vehicle.drain import Drain
from docket_celery.vehicle.handbacks import HandBacks
from docket_celery.vehicle.outcomes import Abandoned, Deferred, Discarded, FenceLost, HostIncompatible, Parked, Released


def nothing() -> None:
    """A node that does nothing."""


def nothing_either() -> None:
    """Another one."""


def released(definition: type) -> tuple[type, Any]:
    """A type as one release of the app has it, and the node of that release."""

    def use(item: definition) -> dict[str, Any]:  # type: ignore[valid-type]
        return {"seen": repr(item)}

    # The text of an annotation would be looked up in this module.
    use.__annotations__["item"] = definition
    return definition, use


def release(**fields: Any) -> tuple[type, Any]:
    return released(create_model("Item", __module__=__name__, **fields))


def single(function: Any = nothing, name: str = "single", **options: Any) -> Graph:
    return Graph(name).node("a", function, **options).edge(START, "a")


def forgotten(rig: Rig) -> dict[str, Any]:
    """Takes every function away from the process, and returns them."""
    known = dict(rig.functions)
    rig.functions.clear()
    return known


# -- abandons -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("jitter", "wait"), [(0.0, 30.0), (0.5, 45.0), (0.99, 59.7)])
def test_an_unknown_node_is_an_abandon_with_its_reason_and_a_jittered_wait(jitter: float, wait: float) -> None:
    rig = Rig(jitter=jitter)
    rig.start(single())
    forgotten(rig)
    outcome = rig.drain()
    assert isinstance(outcome, Abandoned)
    assert outcome.disposition == "rescheduled"
    info = rig.info()
    assert (info.claim_attempts, info.claim_abandons, info.claimed_at) == (0, 1, None)
    assert info.wake_at == NOON + timedelta(seconds=wait)
    assert info.abandon_reason == outcome.reason
    assert "nodes.a.call" in outcome.reason
    assert [fact.outcome for fact in rig.reported(DrainFinished)] == ["abandoned"]


def test_abandons_used_up_poison_the_run_for_that_reason_and_a_retry_heals_it_once_the_code_is_there() -> None:
    rig = Rig(max_claim_abandons=2)
    rig.start(single())
    known = forgotten(rig)
    dispositions = []
    for _ in range(3):
        outcome = rig.drain()
        assert isinstance(outcome, Abandoned)
        dispositions.append(outcome.disposition)
        rig.advance(61.0)
    assert dispositions == ["rescheduled", "rescheduled", "poisoned"]
    info = rig.info()
    assert (info.poison_reason, info.claim_attempts) == (MAX_ABANDONS_REASON, 0)
    assert "nodes.a.call" in (info.abandon_reason or "")
    assert [fact.run_ids for fact in rig.reported(RunsPoisoned)] == [("run-1",)]
    rig.functions |= known
    rig.verbs.retry_poisoned_run("run-1")
    assert rig.drain() == Parked(park="terminal")


IN_USE = release(id=(str, ...))
CHANGED = {
    "a field is added": release(id=(str, ...), count=(int, ...)),
    "a field is narrowed": release(id=(int, ...)),
    "a field has another name": release(name=(str, ...)),
}


@pytest.mark.parametrize("nested", [False, True], ids=["itself", "in a list"])
@pytest.mark.parametrize("changed", CHANGED.values(), ids=CHANGED.keys())
def test_a_value_whose_type_another_release_has_changed_waits_for_the_one_that_can_read_it(
    changed: tuple[type, Any], nested: bool
) -> None:
    rig = Rig()
    item, use = IN_USE
    declared = list[item] if nested else item  # type: ignore[valid-type]
    graph = Graph("typed").input("items", declared).field("seen", str)
    graph = graph.node("use", use, inputs={"item": FieldInput(field="items", path=(0,) if nested else ())})
    rig.start(graph.edge(START, "use"), {"items": [{"id": "x"}] if nested else {"id": "x"}})
    (name,) = rig.functions
    elsewhere = Rig(storage=rig.engine.storage, clock=rig.clock)
    elsewhere.functions[name] = changed[1]
    outcome = elsewhere.drain()
    assert isinstance(outcome, Abandoned)
    assert "parameter 'item' of node 'use'" in outcome.reason
    assert "another version of the type" in outcome.reason
    assert (rig.info().claim_attempts, rig.info().claim_abandons) == (0, 1)
    rig.advance(61.0)
    assert rig.drain() == Parked(park="terminal")
    assert rig.run("run-1").fields["seen"] == "Item(id='x')"


def test_a_value_that_its_own_release_cannot_read_fails_the_run() -> None:
    class Picky(BaseModel):
        id: str

        @field_validator("id")
        @classmethod
        def never(cls, value: str) -> str:
            raise ValueError("never good enough")

    rig = Rig()
    item, use = released(Picky)
    graph = Graph("typed").input("item", item).field("seen", str).node("use", use).edge(START, "use")
    rig.start(graph, {"item": {"id": "x"}})
    assert rig.drain() == Parked(park="terminal")
    failure = rig.run("run-1").failure
    assert failure is not None
    assert "never good enough" in failure.message


def test_work_that_nobody_here_can_do_leaves_the_work_that_everybody_can() -> None:
    rig = Rig(jitter=0.25)
    for _ in range(5):
        rig.start(single(name="unknown"))
    forgotten(rig)
    healthy = rig.start(single(nothing_either, name="known"))
    assert rig.verbs.drain() == 6
    assert rig.run(healthy.id).status is RunStatus.DONE
    assert [rig.info(f"run-{number}").claim_abandons for number in range(1, 6)] == [1] * 5
    assert rig.verbs.drain() == 0


def test_an_abandoned_run_starts_over_with_no_abandons_once_it_made_progress() -> None:
    rig = Rig(drain_max_moments=1)
    rig.start(single().node("b", lambda: None).edge("a", "b"))
    known = forgotten(rig)
    rig.drain()
    rig.functions |= known
    rig.advance(60.0)
    rig.drain()
    assert (rig.info().claim_abandons, rig.info().abandon_reason) == (0, None)


def test_state_that_cannot_be_decoded_is_abandoned_under_the_chosen_token() -> None:
    rig = Rig()
    rig.start(single())
    rig.runs.plan("redeem_claim", Fault(error=CorruptRecord("run 'run-1': unknown version 9"), applied=True))
    outcome = rig.drain()
    assert outcome == Abandoned(disposition="rescheduled", reason="run 'run-1': unknown version 9")
    ((run_id, token, policy), _) = rig.runs.of("abandon_claim")[0]
    assert (run_id, token) == ("run-1", rig.runs.of("redeem_claim")[0][1]["token"])
    assert policy.expected_checkpoint_seq == 1
    assert (rig.info().claim_attempts, rig.info().claim_abandons) == (0, 1)


def test_an_abandon_that_lost_the_claim_meanwhile_is_stale_and_changes_nothing() -> None:
    rig = Rig()
    rig.start(single())
    forgotten(rig)
    rig.runs.plan("abandon_claim", lambda: rig.verbs.cancel_run("run-1"))
    outcome = rig.drain()
    assert isinstance(outcome, Abandoned)
    assert outcome.disposition == "stale"
    assert rig.info().claim_abandons == 0


# -- host incompatibility -----------------------------------------------------------------------------------------


def test_a_limit_beyond_the_hosts_is_pushed_back_exponentially_and_never_poisoned() -> None:
    rig = Rig(max_attempt_elapsed=5.0, abandon_backoff=10.0, abandon_backoff_cap=35.0, max_claim_abandons=1)
    rig.start(single(timeout=60.0))
    waits = []
    for _ in range(4):
        outcome = rig.drain()
        assert outcome == HostIncompatible(reason="node 'a' may take 60 s; docket_max_attempt_elapsed is 5 s here")
        wake_at = rig.info().wake_at
        assert wake_at is not None
        waits.append((wake_at - rig.clock.now()).total_seconds())
        rig.advance(waits[-1])
    assert waits == [10.0, 20.0, 35.0, 35.0]
    info = rig.info()
    assert (info.claim_attempts, info.claim_abandons, info.poisoned_at) == (0, 4, None)
    assert info.abandon_reason == "node 'a' may take 60 s; docket_max_attempt_elapsed is 5 s here"


def test_a_limit_that_just_fits_is_carried_out() -> None:
    rig = Rig(max_attempt_elapsed=5.0)
    rig.start(single(timeout=5.0))
    assert rig.drain() == Parked(park="terminal")


def test_a_push_back_that_finds_the_claim_gone_has_lost_the_fence() -> None:
    rig = Rig(max_attempt_elapsed=5.0)
    rig.start(single(timeout=60.0))
    rig.runs.plan("abandon_claim", lambda: rig.verbs.cancel_run("run-1"))
    assert rig.drain() == FenceLost()


# -- deferral -----------------------------------------------------------------------------------------------------


def test_a_deferral_to_a_time_that_has_passed_meanwhile_wakes_the_run_now() -> None:
    rig = Rig()
    rig.start(single())
    lease = rig.lease()
    rig.runs.redeem_claim(lease, token="ours")
    monotonic = rig.clock.monotonic
    drain = Drain(lease=lease, token="ours", began=monotonic(), monotonic=monotonic, pause=rig.advance)
    rig.advance(10.0)
    assert HandBacks(rig.engine).defer(drain, NOON + timedelta(seconds=5)) == Deferred(disposition="rescheduled")
    assert rig.info().wake_at == NOON + timedelta(seconds=10)


def test_a_deferral_that_finds_the_claim_gone_is_stale() -> None:
    rig = Rig()
    rig.start(single(lambda: Sleep(100)))
    rig.drain()
    rig.state.runs["run-1"].wake_at = rig.clock.now()
    rig.runs.plan("abandon_claim", lambda: rig.verbs.cancel_run("run-1"))
    assert rig.drain() == Deferred(disposition="stale")


# -- releases -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("jitter", "wait"), [(0.0, 1.0), (0.5, 1.5)])
def test_a_graph_that_cannot_be_loaded_costs_no_attempt_and_waits_a_jittered_moment(jitter: float, wait: float) -> None:
    rig = Rig(jitter=jitter)
    rig.start(single())
    rig.graphs.plan("fetch_graph", unreachable())
    assert rig.drain() == Released(reason="the database is away")
    info = rig.info()
    assert (info.claim_attempts, info.claim_abandons) == (0, 0)
    assert info.wake_at == NOON + timedelta(seconds=wait)
    rig.advance(wait)
    assert rig.drain() == Parked(park="terminal")


def test_many_failed_loads_never_poison() -> None:
    rig = Rig(max_claim_attempts=1)
    rig.start(single())
    rig.graphs.plan("fetch_graph", *[unreachable()] * 10)
    for _ in range(10):
        assert isinstance(rig.drain(), Released)
        rig.advance(2.0)
    assert rig.drain() == Parked(park="terminal")


# -- hand-backs over a bad wire -----------------------------------------------------------------------------------


def test_a_hand_back_is_repeated_until_it_gets_through() -> None:
    rig = Rig()
    rig.start(single())
    forgotten(rig)
    rig.runs.plan("abandon_claim", unreachable(), unreachable())
    outcome = rig.drain()
    assert isinstance(outcome, Abandoned)
    assert outcome.disposition == "rescheduled"
    assert rig.pauses == [0.05, 0.1]


def test_a_hand_back_whose_reply_was_lost_is_not_done_twice() -> None:
    rig = Rig()
    rig.start(single())
    forgotten(rig)
    rig.runs.plan("abandon_claim", lost_reply())
    rig.drain()
    assert (rig.info().claim_abandons, rig.info().claim_attempts) == (1, 0)


@pytest.mark.parametrize("method", ["abandon_claim", "release_claim"])
def test_a_hand_back_that_never_gets_through_is_left_to_the_claims_expiry(method: str) -> None:
    rig = Rig()
    rig.start(single())
    if method == "abandon_claim":
        forgotten(rig)
    else:
        rig.graphs.plan("fetch_graph", unreachable())
    rig.runs.always(method, unreachable)
    assert rig.drain().kind == "unreached"
    assert sum(rig.pauses) < 60.0
    assert max(rig.pauses) == 1.0
    assert [fact.outcome for fact in rig.reported(DrainFinished)] == ["unreached"]
    assert rig.holds.now == []


def test_a_losers_release_under_its_dead_token_leaves_the_winners_claim_alone() -> None:
    rig = Rig()
    rig.start(single())

    def steal() -> None:
        rig.expire()
        rig.runs.redeem_claim(rig.lease(), token="thief")

    rig.runs.plan("commit", steal)
    lease = rig.lease()
    assert isinstance(rig.drain(lease), Discarded)
    assert rig.runs.count("release_claim") == 1
    info = rig.info()
    assert (info.wake_at, info.claim_redeemed, info.claim_attempts) == (None, True, 2)
    rig.runs.refresh_claim("run-1", "thief")


def test_a_release_that_fails_after_a_lost_fence_is_nobodys_loss() -> None:
    rig = Rig()
    rig.start(single())
    rig.runs.plan("commit", lambda: rig.verbs.cancel_run("run-1"))
    rig.runs.plan("release_claim", Fault(error=StoreUnavailable("gone")))
    assert isinstance(rig.drain(), Discarded)
    assert rig.run().status is RunStatus.CANCELLED
