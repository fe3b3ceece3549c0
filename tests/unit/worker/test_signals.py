"""Signals: which transitions send which, with what, and that a receiver can break nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeAlias

import pytest
from celery.utils.dispatch import Signal
from support.faults import Fault
from support.rig import Rig

import docket_celery
from docket_celery import FINISH, START, Graph, Interrupt, NodeContext, Retry
from docket_celery.errors import CorruptRecord
from docket_celery.telemetry.hook import RunsPoisoned
from docket_celery.worker import signals

NAMES = (
    "lease_refused",
    "moment_committed",
    "node_failed",
    "run_finished",
    "run_poisoned",
    "run_started",
    "run_waiting",
)


class Heard:
    """Every signal that was sent, in order, as its name and what came with it."""

    def __init__(self) -> None:
        self.all: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, signal: Signal, sender: object, **sent: Any) -> None:
        self.all.append((signal.name, {"sender": sender, **sent}))

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.all if name != "moment_committed"]

    def one(self, name: str) -> dict[str, Any]:
        (sent,) = [sent for heard, sent in self.all if heard == name]
        return sent


@pytest.fixture
def heard() -> Iterator[Heard]:
    heard = Heard()
    for name in NAMES:
        getattr(signals, name).connect(heard)
    yield heard
    for name in NAMES:
        getattr(signals, name).disconnect(heard)


Connect: TypeAlias = Callable[[Signal, Callable[..., None]], None]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Connects a receiver until the end of the test."""
    with ExitStack() as connections:

        def connect(signal: Signal, receiver: Callable[..., None]) -> None:
            signal.connect(receiver)
            connections.callback(signal.disconnect, receiver)

        yield connect


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.engine.hooks.add(partial(signals.send, rig))
    return rig


def greets() -> None:
    """Does nothing, well."""


def fails() -> None:
    raise OSError("never works")


def asks(answer: str | None = None) -> Interrupt | None:
    return Interrupt("answer") if answer is None else None


def alone(function: Any, **options: Any) -> Graph:
    return Graph("alone").field("answer", str).node("n", function, **options).edge(START, "n").edge("n", FINISH)


def test_every_signal_is_a_public_name_of_the_package() -> None:
    assert {name: getattr(docket_celery, name) for name in NAMES} == {name: getattr(signals, name) for name in NAMES}


def test_a_run_that_ends_tells_its_start_and_its_end(rig: Rig, heard: Heard) -> None:
    run = rig.start(alone(greets))
    assert heard.names == ["run_started"]
    assert heard.one("run_started")["run"] == run
    rig.drain()
    assert heard.names == ["run_started", "run_finished"]
    finished = heard.one("run_finished")
    assert (finished["sender"], finished["run"], finished["tenant"]) == (rig, rig.run(), None)


def test_every_transition_tells_that_it_is_committed_before_anything_else(rig: Rig, heard: Heard) -> None:
    rig.start(alone(greets))
    rig.drain()
    assert [name for name, _ in heard.all] == ["moment_committed", "run_started", "moment_committed", "run_finished"]
    committed = [sent for name, sent in heard.all if name == "moment_committed"]
    assert [sent["run"].checkpoint_seq for sent in committed] == [1, 2]
    assert committed[0]["checkpoint_type"] == "run_initialized"
    assert tuple(event for sent in committed for event in sent["events"]) == rig.events()


def test_a_signal_comes_after_its_commit(rig: Rig, connect: Connect) -> None:
    seen: list[str] = []

    def receive(run: Any, **_sent: Any) -> None:
        seen.append(rig.run(run.id).status.value)

    connect(signals.run_finished, receive)
    rig.start(alone(greets))
    rig.drain()
    assert seen == ["done"]


def test_an_open_question_tells_that_the_run_waits_and_who_is_asked(rig: Rig, heard: Heard) -> None:
    rig.start(alone(asks))
    rig.drain()
    assert heard.names == ["run_started", "run_waiting"]
    assert [open_.field for open_ in heard.one("run_waiting")["run"].interrupts] == ["answer"]
    rig.verbs.cancel_run("run-1")
    assert heard.one("run_finished")["run"].status.value == "cancelled"


def test_a_run_that_is_ended_by_force_is_told_once(rig: Rig, heard: Heard) -> None:
    rig.start(alone(greets))
    rig.runs.plan("mutate_run", Fault(error=CorruptRecord("run 'run-1': its state cannot be read")))
    rig.verbs.cancel_run("run-1", force=True, reason="beyond repair")
    assert heard.names == ["run_started", "run_finished"]
    assert heard.one("run_finished")["run"].status.value == "cancelled"
    committed = heard.all[-2][1]
    assert (heard.all[-2][0], committed["checkpoint_type"]) == ("moment_committed", "run_cancelled")
    assert committed["events"] == rig.events()[-1:]
    rig.runs.plan("mutate_run", Fault(error=CorruptRecord("run 'run-1': its state cannot be read")))
    rig.verbs.cancel_run("run-1", force=True)
    assert heard.names == ["run_started", "run_finished"]


def test_each_failed_attempt_is_told_and_the_end_only_once(rig: Rig, heard: Heard) -> None:
    rig.start(alone(fails, retry=Retry(max_attempts=2, backoff=1.0, jitter=0.0)))
    rig.drain()
    rig.advance(1.0)
    rig.drain()
    assert heard.names == ["run_started", "node_failed", "node_failed", "run_finished"]
    failures = [sent for name, sent in heard.all if name == "node_failed"]
    assert [(sent["node"], sent["event"].data["attempt"]) for sent in failures] == [("n", 1), ("n", 2)]


def test_a_lease_with_nothing_to_redeem_is_told(rig: Rig, heard: Heard) -> None:
    rig.start(alone(greets))
    lease = rig.lease()
    rig.drain(lease)
    rig.drain(lease)
    assert heard.one("lease_refused")["run_id"] == "run-1"


def test_each_poisoned_run_is_told(rig: Rig, heard: Heard) -> None:
    rig.engine.hooks(RunsPoisoned(run_ids=("run-1", "run-2")))
    assert [sent["run_id"] for name, sent in heard.all if name == "run_poisoned"] == ["run-1", "run-2"]


def test_a_receiver_that_raises_stops_neither_the_run_nor_other_receivers(
    rig: Rig, heard: Heard, connect: Connect
) -> None:
    def broken(**_sent: Any) -> None:
        raise RuntimeError("a receiver's own fault")

    connect(signals.moment_committed, broken)
    rig.start(alone(greets))
    assert str(rig.drain()) == "parked:terminal"
    assert heard.names == ["run_started", "run_finished"]


def test_what_a_receiver_does_to_a_run_reaches_no_node_and_no_commit(rig: Rig, connect: Connect) -> None:
    def spoils(run: Any, **_sent: Any) -> None:
        run.fields["meta"]["spoilt"] = True
        run.fields["log"].append("spoilt")
        for question in run.interrupts:
            question.payload["spoilt"] = True

    def begins() -> dict[str, Any]:
        return {"meta": {"begun": True}, "log": ["begun"]}

    def looks(meta: dict[str, bool], log: list[str], answer: str | None = None) -> Any:
        if answer is None:
            return Interrupt("answer", payload={})
        return {"meta": {"seen": sorted(meta)}, "log": list(log)}

    graph = Graph("g").field("meta", dict[str, Any], reducer="merge").field("log", list[str], reducer="append")
    graph = graph.field("answer", str).node("begins", begins).node("looks", looks)
    connect(signals.moment_committed, spoils)
    rig.start(graph.edge(START, "begins").edge("begins", "looks").edge("looks", FINISH))
    rig.drain()
    (question,) = rig.run().interrupts
    assert question.payload == {}
    rig.verbs.resolve_interrupt("run-1", question.id, "yes")
    rig.drain()
    assert rig.run().fields == {
        "answer": "yes",
        "log": ["begun", "begun"],
        "meta": {"begun": True, "seen": ["begun"]},
    }


def fails_then_asks(ctx: NodeContext, answer: str | None = None) -> Interrupt | None:
    if ctx.attempt == 1:
        raise OSError("not yet")
    return asks(answer)


@pytest.mark.parametrize(
    ("name", "drains"), [("moment_committed", 3), ("node_failed", 1), ("run_waiting", 1), ("run_finished", 1)]
)
def test_who_receives_a_run_gets_all_its_values_which_are_not_read_for_anybody_else(
    connect: Connect, name: str, drains: int
) -> None:
    graph = alone(fails_then_asks, retry=Retry(max_attempts=2, backoff=0.0)).field("kept", str, default="value")
    received: list[Any] = []

    def receive(run: Any, **_sent: Any) -> None:
        received.append(run.output["kept"])

    def reads() -> int:
        """How often the vehicles of one run read values that they had left behind."""
        rig = Rig(leaves=True)
        rig.engine.hooks.add(partial(signals.send, rig), needs_values=partial(signals.are_received, rig))
        rig.start(graph)
        rig.drain()
        rig.drain()
        rig.verbs.resolve_interrupt("run-1", rig.run().interrupts[0].id, "yes")
        rig.drain()
        return rig.runs.count("read_values")

    assert reads() == 0
    connect(getattr(signals, name), receive)
    assert reads() == drains
    assert received
    assert set(received) == {"value"}


def test_who_connects_while_a_commit_is_under_way_is_told_of_the_next_and_never_of_half_a_run(connect: Connect) -> None:
    rig = Rig(leaves=True)
    rig.engine.hooks.add(partial(signals.send, rig), needs_values=partial(signals.are_received, rig))
    heard: list[Any] = []

    def receive(run: Any, **_sent: Any) -> None:
        heard.append((run.checkpoint_seq, run.output))

    graph = alone(greets).field("kept", str, default="value").node("m", greets).edge("n", "m")
    rig.start(graph)
    rig.runs.plan("commit", lambda: connect(signals.moment_committed, receive))
    rig.drain()
    assert heard == [(3, {"kept": "value"})]
