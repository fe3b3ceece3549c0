"""The public API as its users type it: checked by mypy --strict, never executed.

What must not type-check stands under `type: ignore` with its code: mypy complains when such a comment is not needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

import psycopg
from celery import Celery

from docket_celery import (
    FINISH,
    START,
    Docket,
    DocketError,
    Event,
    EventPage,
    EventType,
    Graph,
    GraphRef,
    Interrupt,
    NodeContext,
    PermanentFailure,
    Retry,
    Run,
    RunInfo,
    RunPage,
    RunStatus,
    RunSummary,
    Sleep,
    lease_refused,
    moment_committed,
    node,
    node_failed,
    run_finished,
    run_poisoned,
    run_started,
    run_waiting,
)
from docket_celery.client import Client, TenantClient
from docket_celery.graph.diagnostics import Diagnostic
from docket_celery.run.document import OpenInterrupt
from docket_celery.run.moment import Moment
from docket_celery.storage.contracts.values import GraphVersion, GraphVersionPage, Storage
from docket_celery.testing import (
    UNANSWERED,
    FixedJitter,
    InlineResult,
    InlineRun,
    ManualClock,
    SequentialIds,
    run_inline,
    run_with_crashes,
)


@node
def price(order_id: str) -> dict[str, Any]:
    return {"total": 1250.0, "log": "priced"}


@node(name="shop.approve")
def approve(total: float, approved: bool | None = None) -> Interrupt | dict[str, Any]:
    if approved is None:
        return Interrupt("approved", schema=bool, payload={"total": total}, timeout=60, default=False)
    return {"log": "approved"}


def later(ctx: NodeContext) -> Sleep:
    ctx.check()
    assert_type(ctx.idempotency_key, str)
    assert_type(ctx.attempt, int)
    if ctx.attempt > 2:
        raise PermanentFailure("given up")
    return Sleep(60.0, writes={"log": "slept"}) if ctx.step else Sleep(until=datetime.now(UTC))


assert_type(price("o-17"), dict[str, Any])  # marking changes nothing about a function
price(17)  # type: ignore[arg-type]

graph = (
    Graph("order", max_supersteps=10)
    .input("order_id", str)
    .field("total", float)
    .field("approved", bool)
    .field("receipt", dict)
    .field("log", list[str], reducer="append", default=[])
    .node("price", price, retry=Retry(max_attempts=3, backoff=1.0), timeout=5)
    .node("approve", approve)
    .node("later", later, config={"a": 1})
    .node("charge", "proj.tasks.charge", inputs={"order": "order_id"}, writes="receipt")
    .edge(START, "price")
    .edge("price", "approve", when="total > 1000.0")
    .edge("price", "later")
    .edge(["approve", "later"], "charge")
    .edge("charge", FINISH)
    .output("receipt", "log")
)
assert_type(graph, Graph)
assert_type(graph.to_dict(), dict[str, Any])
assert_type(Graph.from_dict(graph.to_dict()), Graph)
assert_type(graph.with_max_supersteps(None), Graph)
graph.edge(1, FINISH)  # type: ignore[arg-type]
graph.node("price", 1)  # type: ignore[arg-type]
Retry(3)  # type: ignore[call-arg]


def wiring(app: Celery) -> None:
    docket = Docket(app)
    Docket().init_app(app)
    assert_type(Docket.of(app), Docket | None)
    assert_type(docket.tenant, str | None)
    assert_type(docket.storage, Storage)


def graphs(docket: Docket) -> None:
    ref = docket.save_graph(graph)
    assert_type(ref, GraphRef)
    assert_type(ref.graph_hash, str)
    assert_type(docket.save_graph(graph, check_nodes=False), GraphRef)
    assert_type(docket.fetch_graph(ref), Graph)
    assert_type(docket.list_graph_versions("order", limit=10, before=ref), GraphVersionPage)
    assert_type(docket.list_graphs(limit=10, after="a"), tuple[GraphVersion, ...])
    assert_type(docket.verify_graph(graph), tuple[Diagnostic, ...])
    assert_type(docket.latest_graph("order"), GraphRef)
    assert_type(graph.to_svg(), str)
    assert_type(Graph.json_schema(), dict[str, Any])
    docket.save_graph(graph.to_dict())  # type: ignore[arg-type]


def runs(docket: Docket, ref: GraphRef, connection: psycopg.Connection[Any]) -> None:
    run = docket.start_run(ref, {"order_id": "o-17"})
    assert_type(run, Run)
    assert_type(docket.start_run("order", {"order_id": "o-17"}, key="o-17"), Run)
    docket.start_run(ref, connection=connection, start_at=datetime.now(UTC) + timedelta(hours=1))
    assert_type(docket.start_runs(ref, [{"order_id": "o-17"}, None], keys=["o-17", None]), tuple[Run, ...])
    docket.start_runs("order", ({"n": n} for n in range(3)), connection=connection)
    docket.wake()
    assert_type(docket.await_run(run.id, timeout=30), Run)
    assert_type(docket.fetch_run(run.id), Run)
    assert_type(docket.resolve_interrupt(run.id, run.interrupts[0].id, True), Run)
    assert_type(docket.cancel_run(run.id, reason="why"), Run)
    assert_type(docket.retry_poisoned_run(run.id), Run)
    assert_type(docket.drain(limit=1), int)
    docket.start_run(ref, start_at="tomorrow")  # type: ignore[arg-type]
    docket.start_run(graph, {})  # type: ignore[arg-type]


def reading(docket: Docket, run: Run) -> None:
    assert_type(run.status, RunStatus)
    assert_type(run.status is RunStatus.DONE, bool)
    assert_type(run.fields, Mapping[str, Any])
    assert_type(run.output, dict[str, Any])
    assert_type(run.interrupts, tuple[OpenInterrupt, ...])
    assert_type(run.finished_at, datetime | None)

    info = docket.inspect_run(run.id)
    assert_type(info, RunInfo)
    assert_type(info.claimed_at, datetime | None)
    assert_type(info.poison_reason, str | None)

    page = docket.list_runs(status=["running", RunStatus.WAITING], graph_id="order", limit=50)
    assert_type(page, RunPage)
    assert_type(page.runs, tuple[RunSummary, ...])
    assert_type(docket.list_runs(status="done", before=page.next_before), RunPage)
    docket.list_runs("done")  # type: ignore[call-arg]

    events = docket.list_events(run.id, after_seq=0, limit=250)
    assert_type(events, EventPage)
    assert_type(events.events, tuple[Event, ...])
    assert_type(events.events[0].type, EventType)
    assert_type(events.pruned, int)


def tenants(docket: Docket) -> None:
    acme = docket.for_tenant("acme")
    assert_type(acme, TenantClient)
    assert_type(acme.start_run("order"), Run)
    verbs: Sequence[Client] = [docket, acme]
    assert_type(verbs[0].list_runs(), RunPage)


def errors(docket: Docket) -> None:
    try:
        docket.fetch_run("nobody")
    except DocketError as error:
        assert_type(error, DocketError)


def inline() -> None:
    result = run_inline(graph, {"order_id": "o-17"}, resolve={"approved": True}, clock=ManualClock(), jitter=0.5)
    assert_type(result, InlineResult)
    assert_type(result.status, RunStatus)
    assert_type(result.output, dict[str, Any])
    assert_type(result.events, tuple[Event, ...])
    run_inline(graph, resolve=lambda interrupt: UNANSWERED if interrupt.deadline else interrupt.payload)
    run_inline(graph, stubs={"price": {"total": 1.0}, "approve": lambda total: {"log": str(total)}})
    assert_type(run_with_crashes(graph, {"order_id": "o-17"}), InlineResult)
    run = InlineRun(graph, {"order_id": "o-17"})
    assert_type(run.step(), Moment | None)
    assert_type(run.run.only_answers_missing, bool)
    assert_type(run.finish(), InlineResult)
    run_inline(graph, resolved={})  # type: ignore[call-arg]
    assert_type(SequentialIds().run_id(), str)
    assert_type(FixedJitter(0.5).fraction(), float)


def announce(run: Run, tenant: str | None, **_sent: Any) -> None:
    assert_type(run.status, RunStatus)


def signals() -> None:
    for signal in (moment_committed, run_started, run_waiting, run_finished, run_poisoned, node_failed, lease_refused):
        signal.connect(announce)
