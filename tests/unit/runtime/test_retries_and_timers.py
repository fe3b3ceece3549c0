"""Failed attempts, their backoff, and durable sleeps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from docket_celery import START, Graph, NodeContext, PermanentFailure, Retry, Sleep
from docket_celery.errors import GraphFormatError, InvalidInput
from docket_celery.run.document import RunStatus
from docket_celery.run.events import EventType
from docket_celery.testing import ManualClock, run_inline


def test_a_failed_attempt_is_tried_again_after_its_backoff() -> None:
    clock = ManualClock()
    called: list[tuple[float, int, str]] = []

    def flaky(ctx: NodeContext) -> None:
        called.append((clock.monotonic(), ctx.attempt, ctx.idempotency_key))
        if ctx.attempt < 3:
            raise OSError("again")

    graph = Graph("g").node("a", flaky, retry=Retry(max_attempts=3, backoff=5.0, factor=2.0)).edge(START, "a")
    result = run_inline(graph, clock=clock)
    assert result.status is RunStatus.DONE
    assert [(at, attempt) for at, attempt, _ in called] == [(0.0, 1), (5.0, 2), (15.0, 3)]
    assert len({key for _, _, key in called}) == 3


def test_a_run_fails_after_exactly_its_attempts() -> None:
    called: list[int] = []

    def broken() -> None:
        called.append(1)
        raise ValueError("never")

    graph = Graph("g").node("a", broken, retry=Retry(max_attempts=4, backoff=0.0)).edge(START, "a")
    result = run_inline(graph)
    assert len(called) == 4
    assert result.run.failure is not None
    assert (result.run.failure.code, result.run.failure.message) == ("node_error", "never")
    assert [event.data["attempt"] for event in result.events if event.type is EventType.NODE_FAILED] == [1, 2, 3, 4]


def test_a_permanent_failure_is_not_tried_again() -> None:
    called: list[int] = []

    def refuse() -> None:
        called.append(1)
        raise PermanentFailure("card stolen")

    run_inline(Graph("g").node("a", refuse, retry=Retry(max_attempts=5)).edge(START, "a"))
    assert len(called) == 1


def test_a_finished_sibling_is_kept_while_another_is_retried() -> None:
    calls = {"ok": 0, "flaky": 0}

    def ok() -> dict[str, str]:
        calls["ok"] += 1
        return {"log": "ok"}

    def flaky() -> dict[str, str]:
        calls["flaky"] += 1
        if calls["flaky"] == 1:
            raise OSError("again")
        return {"log": "flaky"}

    graph = (
        Graph("g")
        .field("log", list[str], reducer="append")
        .node("ok", ok)
        .node("flaky", flaky, retry=Retry(max_attempts=2))
        .edge(START, "ok")
        .edge(START, "flaky")
    )
    result = run_inline(graph)
    assert calls == {"ok": 1, "flaky": 2}
    assert result.fields["log"] == ["flaky", "ok"]
    assert result.history[1].fields["log"] == []


@pytest.mark.parametrize("attempt", [1, 2, 5, 1_025, 2_000])
def test_backoff_saturates_and_never_raises(attempt: int) -> None:
    policy = Retry(max_attempts=2_000, backoff=5.0, factor=5.0, backoff_max=3_600.0, jitter=0.0)
    assert policy.delay(attempt, 0.5) == min(5.0 * 5.0 ** min(attempt - 1, 20), 3_600.0)


@pytest.mark.parametrize("factor", [2, 2.0])
@pytest.mark.parametrize("attempt", [1, 1_024, 1_025, 2_000])
def test_no_backoff_stays_none_however_often_it_is_tried(attempt: int, factor: float) -> None:
    assert Retry(max_attempts=5_000, backoff=0, factor=factor).delay(attempt, 0.5) == 0.0


def test_jitter_only_shortens_a_delay() -> None:
    policy = Retry(backoff=10.0, jitter=0.2)
    assert policy.delay(1, 0.0) == 10.0
    assert policy.delay(1, 0.999) == pytest.approx(8.002)


@pytest.mark.parametrize(
    "bad", [{"max_attempts": 0}, {"max_attempts": True}, {"backoff": -1}, {"jitter": 2}, {"factor": "2"}]
)
def test_a_retry_policy_out_of_bounds_is_refused_by_name(bad: dict[str, object]) -> None:
    with pytest.raises(GraphFormatError, match=next(iter(bad))):
        Retry(**bad)  # type: ignore[arg-type]


def test_a_sleep_finishes_its_node_later_without_calling_it_again() -> None:
    clock = ManualClock()
    called: list[float] = []

    def nap() -> Sleep:
        called.append(clock.monotonic())
        return Sleep(60, writes={"log": "slept"})

    def after(log: list[str]) -> dict[str, str]:
        called.append(clock.monotonic())
        return {"log": "after"}

    graph = (
        Graph("g")
        .field("log", list[str], reducer="append")
        .node("nap", nap)
        .node("next", after)
        .edge(START, "nap")
        .edge("nap", "next")
    )
    result = run_inline(graph, clock=clock)
    assert called == [0.0, 60.0]
    assert result.fields["log"] == ["slept", "after"]
    assert EventType.TIMER_SET in {event.type for event in result.events}


def test_a_sleep_until_an_instant_in_the_past_ends_at_once() -> None:
    clock = ManualClock()
    graph = Graph("g").node("nap", lambda: Sleep(until=clock.now() - timedelta(days=1))).edge(START, "nap")
    assert run_inline(graph, clock=clock).status is RunStatus.DONE
    assert clock.monotonic() == 0.0


@pytest.mark.parametrize(
    "bad",
    [
        {"seconds": -1},
        {"seconds": True},
        {"seconds": 1, "until": datetime.now(UTC)},
        {"until": datetime(2026, 1, 1)},
        {"until": datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))},
        {},
    ],
)
def test_a_sleep_takes_one_bounded_duration_or_one_aware_instant(bad: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match=r"[Ss]leep"):
        Sleep(**bad)  # type: ignore[arg-type]
