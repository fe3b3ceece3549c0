"""Nodes that leave a trace of every execution, and wait at gates instead of for time."""

from __future__ import annotations

import os
import threading
from typing import Any

import psycopg

from docket_celery import Interrupt, NodeContext, Sleep


def connect() -> psycopg.Connection[Any]:
    return psycopg.connect(os.environ["PROJ_DATABASE_URL"], autocommit=True)


def record(ctx: NodeContext) -> None:
    """One row per execution, on a connection of the node's own."""
    with connect() as connection:
        connection.execute(
            "INSERT INTO probe (run_id, node, step, attempt, idempotency_key, pid) VALUES (%s, %s, %s, %s, %s, %s)",
            (ctx.run_id, ctx.node, ctx.step, ctx.attempt, ctx.idempotency_key, os.getpid()),
        )


def step(ctx: NodeContext) -> dict[str, Any]:
    record(ctx)
    return {"log": ctx.node}


def held(ctx: NodeContext) -> dict[str, Any]:
    """Goes on once the gate named after the node is open."""
    record(ctx)
    pause = threading.Event()
    with connect() as connection:
        while connection.execute("SELECT 1 FROM gate WHERE name = %s", (ctx.node,)).fetchone() is None:
            pause.wait(0.02)
    return {"log": ctx.node}


def flaky(ctx: NodeContext) -> dict[str, Any]:
    record(ctx)
    if ctx.attempt == 1:
        raise OSError("the first attempt always fails")
    return {"log": ctx.node}


def price(ctx: NodeContext, order_id: str) -> dict[str, Any]:
    record(ctx)
    return {"total": 1250.0, "log": "price"}


def approve(ctx: NodeContext, total: float, approved: bool | None = None) -> Any:
    record(ctx)
    if approved is None:
        return Interrupt("approved", schema=bool, payload={"total": total})
    return {"log": "approve"}


def nap(ctx: NodeContext) -> Sleep:
    record(ctx)
    return Sleep(ctx.config["seconds"], writes={"log": "nap"})
