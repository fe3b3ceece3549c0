"""Failures on their way through a vehicle: nothing is left dangling, nothing overflows, anything raised can be told."""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any

import pytest
from support.clock import NOON
from support.rig import Rig

from docket_celery import START, Graph, Interrupt, NodeContext, Retry
from docket_celery.errors import InactiveRun
from docket_celery.run.codec import decode_state, encode_state
from docket_celery.run.document import RunStatus
from docket_celery.run.events import EventType
from docket_celery.vehicle.outcomes import Discarded, Parked


def asks() -> Interrupt:
    return Interrupt("answer")


def fails() -> None:
    raise ValueError("for good")


def fails_later() -> None:
    raise OSError("again")


def works() -> dict[str, list[str]]:
    return {"log": ["ok"]}


def open_ends(bad: Any = fails) -> Graph:
    """`ask` and `go`, then `bad` beside `later` and `ok`."""
    graph = Graph("ends").field("answer", bool).field("log", list[str], reducer="append")
    graph = graph.node("go", lambda: None).node("ask", asks).edge(START, "go").edge(START, "ask")
    graph = graph.node("bad", bad).node("later", fails_later, retry=Retry(max_attempts=3, backoff=60.0))
    return graph.node("ok", works).edge("go", "bad").edge("go", "later").edge("go", "ok")


# -- nothing dangles ----------------------------------------------------------------------------------------------


def test_a_failed_run_has_no_open_parts_and_its_siblings_results_are_history_only() -> None:
    graph = Graph("ends").field("answer", bool).field("log", list[str], reducer="append")
    graph = graph.node("ask", asks).node("bad", fails).node("ok", works)
    graph = graph.node("later", fails_later, retry=Retry(max_attempts=3, backoff=60.0))
    for name in ("ask", "bad", "ok", "later"):
        graph = graph.edge(START, name)
    rig = Rig()
    rig.start(graph)
    assert rig.drain() == Parked(park="terminal")
    info = rig.info()
    assert info.run.status is RunStatus.FAILED
    assert info.run.failure is not None
    assert info.run.failure.node == "bad"
    assert (info.wake_at, info.claimed_at, info.run.tasks, info.run.interrupts) == (None, None, (), ())
    assert info.run.fields == {"log": []}
    assert [e.node for e in rig.events() if e.type is EventType.NODE_COMPLETED] == ["ok"]
    opened = next(event for event in rig.events() if event.type is EventType.INTERRUPT_OPENED)
    with pytest.raises(InactiveRun):
        rig.verbs.resolve_interrupt("run-1", opened.data["id"], True)


def test_a_cancelled_run_has_no_open_parts_either() -> None:
    rig = Rig()
    rig.start(open_ends())
    rig.drain()
    rig.verbs.cancel_run("run-1")
    info = rig.info()
    assert (info.wake_at, info.claimed_at, info.run.tasks, info.run.interrupts) == (None, None, (), ())
    rig.advance(3_600.0)
    assert rig.verbs.drain() == 0


# -- one schedule -------------------------------------------------------------------------------------------------


def test_a_retry_scheduled_by_a_vehicle_that_was_robbed_counts_for_nothing() -> None:
    keys: list[tuple[int, str]] = []

    def flaky(ctx: NodeContext) -> None:
        keys.append((ctx.attempt, ctx.idempotency_key))
        raise OSError("again")

    rig = Rig()
    graph = Graph("g").node("a", flaky, retry=Retry(max_attempts=3, backoff=10.0, factor=1.0, jitter=0.0))
    rig.start(graph.edge(START, "a"))

    def robbed() -> None:
        rig.expire()
        assert rig.drain() == Parked(park="at")

    rig.runs.plan("commit", robbed)
    assert isinstance(rig.drain(), Discarded)
    info = rig.info()
    assert info.wake_at == rig.clock.now() + timedelta(seconds=10)
    (task,) = info.run.tasks
    assert (task.attempt, task.state) == (2, "retrying")
    assert [event.type for event in rig.events()].count(EventType.NODE_RETRY_SCHEDULED) == 1
    rig.advance(10.0)
    rig.drain()
    assert [attempt for attempt, _ in keys] == [1, 1, 2]
    assert keys[0][1] == keys[1][1] != keys[2][1]


# -- backoff ------------------------------------------------------------------------------------------------------


def test_a_backoff_saturates_and_the_run_fails_after_exactly_its_attempts() -> None:
    rig = Rig()
    policy = Retry(max_attempts=20, backoff=5.0, factor=5.0, backoff_max=3_600.0, jitter=0.0)
    rig.start(Graph("g").node("a", fails, retry=policy).edge(START, "a"))
    waits = []
    while rig.run().status is RunStatus.RUNNING:
        rig.drain()
        wake_at = rig.info().wake_at
        if wake_at is not None:
            waits.append((wake_at - rig.clock.now()).total_seconds())
            rig.advance(waits[-1])
    assert waits == [5.0, 25.0, 125.0, 625.0, 3125.0] + [3600.0] * 14
    assert rig.run().status is RunStatus.FAILED
    assert len([event for event in rig.events() if event.type is EventType.NODE_FAILED]) == 20


@pytest.mark.parametrize("attempt", [1, 17, 1_025, 2_000])
@pytest.mark.parametrize("fraction", [0.0, 0.999])
def test_no_delay_ever_overflows(attempt: int, fraction: float) -> None:
    longest = Retry(max_attempts=2_000, backoff=5.0, factor=1_000.0, backoff_max=3e9, jitter=1.0)
    delay = longest.delay(attempt, fraction)
    assert 0.0 <= delay <= 3e9
    assert (NOON + timedelta(seconds=delay)).year < 9_999


def test_jittered_delays_differ() -> None:
    policy = Retry(max_attempts=3, backoff=10.0, jitter=0.5)
    delays = {policy.delay(1, number / 20) for number in range(20)}
    assert len(delays) == 20
    assert all(5.0 < delay <= 10.0 for delay in delays)


# -- whatever is raised -------------------------------------------------------------------------------------------


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Demanding(Exception):
    def __init__(self, *, needed: int) -> None:
        super().__init__()
        self.needed = needed


class Unusual(BaseException):
    pass


def raises(make: Any) -> Any:
    def node() -> None:
        raise make()

    return node


def own_cause() -> BaseException:
    error = ValueError("own cause")
    error.__cause__ = error
    return error


def cycle() -> BaseException:
    one, two, three = ValueError("one"), ValueError("two"), ValueError("three")
    one.__cause__, two.__context__, three.__cause__ = two, three, one
    return one


def chain() -> BaseException:
    error: BaseException = ValueError("innermost")
    for number in range(5_000):
        outer = ValueError(f"link {number}")
        outer.__cause__ = error
        error = outer
    return error


def with_socket() -> BaseException:
    ours, _ = socket.socketpair()
    return OSError("socket", ours)


RAISED: dict[str, Any] = {
    "own cause": own_cause,
    "cycle": cycle,
    "chain of 5000": chain,
    "mute": Mute,
    "demanding": lambda: Demanding(needed=1),
    "ten megabytes": lambda: ValueError("x" * 10_000_000),
    "nul and surrogate": lambda: ValueError("a\x00b\ud800"),
    "group of 1000": lambda: ExceptionGroup("many", [ValueError(str(number)) for number in range(1_000)]),
    "socket": with_socket,
    "no exception at all": lambda: "just text",
    "base exception": Unusual,
    "exit": lambda: SystemExit(1),
}


@pytest.mark.parametrize("make", RAISED.values(), ids=RAISED)
def test_whatever_a_node_raises_becomes_a_bounded_failure_after_its_attempts(make: Any) -> None:
    rig = Rig()
    rig.start(Graph("g").node("a", raises(make), retry=Retry(max_attempts=2, backoff=1.0, jitter=0.0)).edge(START, "a"))
    rig.drain()
    rig.advance(1.0)
    assert rig.drain() == Parked(park="terminal")
    failure = rig.run().failure
    assert failure is not None
    assert (failure.node, failure.code) == ("a", "node_error")
    assert failure.message
    assert failure.error_type
    assert len(repr(failure)) < 65_536
    failure.message.encode("utf-8")
    assert "\x00" not in failure.message
    assert [event.type for event in rig.events()].count(EventType.NODE_FAILED) == 2
    assert rig.info().poisoned_at is None
    stored = encode_state(rig.run())
    assert len(stored) < 65_536
    assert decode_state(stored).failure == failure
