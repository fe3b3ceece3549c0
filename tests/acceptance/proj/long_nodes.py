"""Nodes that take long, do not end, or take their process along, and graphs of them.

Their times are part of what they are: `config` says how many seconds.
"""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from celery import current_app

from docket_celery import FINISH, START, Docket, Graph, NodeContext, Retry
from proj.graphs import line
from proj.nodes import held, record, step


def sleeps(ctx: NodeContext) -> dict[str, Any]:
    record(ctx)
    time.sleep(float(ctx.config["seconds"]))
    return {"log": ctx.node}


def spins(ctx: NodeContext) -> dict[str, Any]:
    record(ctx)
    until = time.monotonic() + float(ctx.config["seconds"])
    while time.monotonic() < until:
        pass
    return {"log": ctx.node}


async def blocks_its_loop(ctx: NodeContext) -> dict[str, Any]:
    return sleeps(ctx)


async def awaits(ctx: NodeContext) -> dict[str, Any]:
    record(ctx)
    await asyncio.sleep(float(ctx.config["seconds"]))
    return {"log": ctx.node}


def goes_on_regardless(ctx: NodeContext) -> dict[str, Any]:
    """Swallows every exception that comes while it sleeps, however often."""
    record(ctx)
    until = time.monotonic() + float(ctx.config["seconds"])
    while time.monotonic() < until:
        try:
            time.sleep(0.1)
        except Exception:
            continue
    return {"log": ctx.node}


def returns_late(ctx: NodeContext) -> dict[str, Any]:
    """Ends normally, after it has swallowed its limit."""
    record(ctx)
    try:
        time.sleep(float(ctx.config["seconds"]))
    except BaseException:
        return {"log": "late"}
    return {"log": ctx.node}


def holds_the_interpreter(ctx: NodeContext) -> dict[str, Any]:
    """One call into C that lets no other thread of the process run and hears no signal, for ever."""
    record(ctx)
    deque(itertools.repeat(None), maxlen=0)
    return {"log": ctx.node}


def holds_the_interpreter_for_a_while(ctx: NodeContext) -> dict[str, Any]:
    """One call into C that lets no other thread of the process run, for so many seconds."""
    record(ctx)
    ctypes.PyDLL(None).sleep(int(ctx.config["seconds"]))
    return {"log": ctx.node}


def starts_another(ctx: NodeContext) -> dict[str, Any]:
    """Makes docket write something of its own; what comes after that takes for ever."""
    record(ctx)
    docket = Docket.of(current_app._get_current_object())
    assert docket is not None
    docket.start_run(docket.save_graph(line("s1", name="another")), key=ctx.run_id)
    return sleeps(ctx)


def exits(ctx: NodeContext) -> None:
    record(ctx)
    sys.exit(0)


def vanishes(ctx: NodeContext) -> None:
    record(ctx)
    os._exit(0)


def kills_its_process(ctx: NodeContext) -> None:
    record(ctx)
    os.kill(os.getpid(), signal.SIGKILL)


def runs_out_of_memory(ctx: NodeContext) -> None:
    record(ctx)
    raise MemoryError


def alone(
    function: Callable[..., Any], *, seconds: float = 0.0, timeout: float | None = None, retry: Retry | None = None
) -> Graph:
    """One node, under the name of its function."""
    name = function.__name__
    return (
        Graph(f"alone-{name.replace('_', '-')}")
        .field("log", list[str], reducer="append")
        .node(name, function, config={"seconds": seconds}, timeout=timeout, retry=retry)
        .edge(START, name)
        .edge(name, FINISH)
        .output("log")
    )


def beside(function: Callable[..., Any], *, seconds: float, timeout: float) -> Graph:
    """A node that overruns its limit, another one beside it, and one after both."""
    return (
        Graph(f"beside-{function.__name__.replace('_', '-')}")
        .field("log", list[str], reducer="append")
        .node("slow", function, config={"seconds": seconds}, timeout=timeout)
        .node("quick", step)
        .edge(START, "slow")
        .edge(START, "quick")
        .edge(["slow", "quick"], FINISH)
        .output("log")
    )


def then(function: Callable[..., Any] = held, *, seconds: float = 0.0) -> Graph:
    """A node that may take long, and another one after it."""
    return (
        Graph("then")
        .field("log", list[str], reducer="append")
        .node("gate1", function, config={"seconds": seconds})
        .node("s2", step)
        .edge(START, "gate1")
        .edge("gate1", "s2")
        .edge("s2", FINISH)
        .output("log")
    )
