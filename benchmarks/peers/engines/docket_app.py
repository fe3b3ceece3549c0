"""The app of docket's workers: its nodes, its graphs, and a task that takes one plain Celery hop."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from celery import Celery
from celery.signals import worker_init

from benchmarks.peers.tally import Tally
from benchmarks.peers.workloads import APPENDED, Workload
from docket_celery import FINISH, START, Docket, Graph, Interrupt, NodeContext, node
from docket_celery.graph.elements import ConstantInput, FieldInput

DATABASE, BROKER, REFILL, TRANSPORT, DIRECTORY = (
    f"PEERS_{name}" for name in ("DATABASE", "BROKER", "REFILL", "TRANSPORT", "DIRECTORY")
)
HOPS = "hops"

tally = Tally(Path(os.environ.get(DIRECTORY, ".")))


def make_app(database: str, broker: str, refill: str, transport: dict[str, Any]) -> Celery:
    """Default options, but for the prefetch of one that the documentation recommends, and those of the transport."""
    app = Celery("peers", broker=broker, include=["benchmarks.peers.engines.docket_app"])
    app.conf.broker_connection_retry_on_startup = True
    app.conf.broker_transport_options = transport
    app.conf.worker_prefetch_multiplier = 1
    app.conf.docket_database_url = database
    app.conf.docket_refill = refill
    Docket(app)
    app.task(hop, name="peers.hop", queue=HOPS, ignore_result=True)
    return app


def hop(n: int, step: int) -> None:
    """What a plain task does here."""
    tally.note(n, step)


@node(name="peers.no_op")
def no_op(n: int, step: int) -> None:
    """Says that it was here."""
    tally.note(n, step)


@node(name="peers.part")
def part(n: int, step: int) -> dict[str, int]:
    """One branch of the fan."""
    tally.note(n, step)
    return {"parts": step}


@node(name="peers.join")
def join(n: int, step: int, parts: list[int]) -> dict[str, int]:
    """What all the branches gave."""
    tally.note(n, step)
    return {"total": sum(parts)}


@node(name="peers.append")
def append(n: int, ctx: NodeContext) -> dict[str, str | int]:
    """One kilobyte more in the log."""
    tally.note(n, ctx.step - FIRST_STEP)
    return {"log": APPENDED, "round": 1}


@node(name="peers.ask")
def ask(n: int, answer: int | None = None) -> Interrupt | None:
    """Parks the run until somebody answers."""
    if answer is None:
        tally.note(n, 0)
        return Interrupt("answer", schema=int)
    return None


FIRST_STEP = 1


def graph_of(workload: Workload, beside: bool) -> Graph:
    """The graph of a workload; with an input that no node reads, if there is to be one."""
    graph = {"chain": _chain, "fan": _fan, "append": _append, "wake": _wake}[workload.shape](workload.length)
    return graph.input("field", str) if beside else graph


def _at(step: int) -> dict[str, Any]:
    return {"n": FieldInput(field="n"), "step": ConstantInput(value=step)}


def _chain(length: int) -> Graph:
    names = [f"n{step:03}" for step in range(length)]
    graph = Graph("chain").input("n", int)
    for step, name in enumerate(names):
        graph = graph.node(name, no_op, inputs=_at(step))
    for source, target in zip([START, *names], [*names, FINISH], strict=True):
        graph = graph.edge(source, target)
    return graph


def _fan(branches: int) -> Graph:
    names = [f"b{step}" for step in range(branches)]
    graph = Graph("fan").input("n", int).field("parts", list[int], reducer="append").field("total", int)
    for step, name in enumerate(names):
        graph = graph.node(name, part, inputs=_at(step)).edge(START, name)
    graph = graph.node("join", join, inputs={**_at(branches), "parts": FieldInput(field="parts")})
    return graph.edge(names, "join").edge("join", FINISH)


def _append(rounds: int) -> Graph:
    return (
        Graph("append", max_supersteps=rounds + 1)
        .input("n", int)
        .field("log", list[str], reducer="append")
        .field("round", int, reducer="sum")
        .node("append", append)
        .edge(START, "append")
        .edge("append", "append", when=f"round < {rounds}")
        .edge("append", FINISH, when=f"round >= {rounds}")
    )


def _wake(_: int) -> Graph:
    return (
        Graph("wake")
        .input("n", int)
        .field("answer", int)
        .node("ask", ask)
        .node("next", no_op, inputs=_at(1))
        .edge(START, "ask")
        .edge("ask", "next")
        .edge("next", FINISH)
    )


@worker_init.connect  # type: ignore[untyped-decorator]
def _wait_for_the_others(**_: object) -> None:
    from benchmarks.peers.engine import go

    go(Path(os.environ[DIRECTORY]))


if DATABASE in os.environ:
    app = make_app(os.environ[DATABASE], os.environ[BROKER], os.environ[REFILL], json.loads(os.environ[TRANSPORT]))
