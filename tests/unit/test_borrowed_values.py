"""Values that somebody still holds: whatever is done to them afterwards, the run has what was given and returned."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from support.rig import Rig

from docket_celery import START, Graph, NodeContext, Retry, RunStatus
from docket_celery.program import RuntimeGraph
from docket_celery.runtime.loop import propose_init
from docket_celery.storage.contracts.values import TENANTLESS
from docket_celery.testing import run_inline


@pytest.mark.parametrize("moments", [1, 100])
def test_an_input_changed_after_the_start_is_the_one_that_was_given(moments: int) -> None:
    graph = Graph("g").input("items", list[str]).field("n", int)
    graph = graph.node("count", lambda items: {"n": len(items)}).edge(START, "count")
    rig = Rig(drain_max_moments=moments)
    input = {"items": ["one"]}
    rig.start(graph, input)
    input["items"].append("two")
    input.clear()
    while rig.run().status is RunStatus.RUNNING:
        rig.drain()
    assert rig.run().fields == {"items": ["one"], "n": 1}


@pytest.mark.parametrize("moments", [1, 100])
def test_what_a_thread_does_to_a_returned_object_later_reaches_nobody(moments: int) -> None:
    returned: dict[str, Any] = {"items": ["kept"]}
    leave, changed = threading.Event(), threading.Event()

    def late() -> None:
        assert leave.wait(10)
        returned["items"].append("late")
        changed.set()

    def gives() -> dict[str, Any]:
        threading.Thread(target=late, daemon=True).start()
        return returned

    def looks(items: list[str]) -> dict[str, Any]:
        leave.set()
        assert changed.wait(10)
        return {"seen": items}

    graph = Graph("g").field("items", list[str]).field("seen", list[str]).node("gives", gives).node("looks", looks)
    rig = Rig(drain_max_moments=moments)
    rig.start(graph.edge(START, "gives").edge("gives", "looks"))
    while rig.run().status is RunStatus.RUNNING:
        rig.drain()
    assert rig.run().fields == {"items": ["kept"], "seen": ["kept"]}


def test_a_default_is_not_shared_between_runs_of_one_process() -> None:
    def dirties(items: list[str], meta: dict[str, int]) -> dict[str, Any]:
        seen = [len(items), len(meta)]
        items.append("dirty")
        meta["dirty"] = 1
        return {"seen": seen}

    graph = Graph("g").field("items", list[str], default=[]).field("meta", dict[str, int], reducer="merge", default={})
    graph = graph.field("seen", list[int]).node("dirties", dirties).edge(START, "dirties")
    for _ in range(2):
        assert run_inline(graph).fields == {"items": [], "meta": {}, "seen": [0, 0]}
    rig = Rig()
    for number in (1, 2):
        rig.start(graph)
        rig.drain()
        assert rig.run(f"run-{number}").fields == {"items": [], "meta": {}, "seen": [0, 0]}


def test_what_is_done_to_a_started_run_changes_the_default_of_no_later_one() -> None:
    graph = Graph("g").field("meta", dict[str, list[int]], default={"seen": []}).field("log", reducer="append")
    rig = Rig()
    ref = rig.publish(graph.input("tags", list[str], default=[]).node("a", lambda: None).edge(START, "a"))
    options = rig.engine.options
    program = rig.engine.plans.get(TENANTLESS, ref)
    assert isinstance(program, RuntimeGraph)
    started = propose_init(program, "run-0", {}, now=rig.clock.now(), options=options).run
    started.fields["meta"]["seen"].append(1)
    started.fields["tags"].append("changed")
    started.fields["log"].append("changed")
    assert rig.verbs.start_run(ref).fields == {"log": [], "meta": {"seen": []}, "tags": []}


def test_what_a_node_does_to_its_configuration_reaches_no_later_call() -> None:
    def counts(ctx: NodeContext) -> dict[str, int]:
        ctx.config["seen"].append(ctx.attempt)
        if ctx.attempt == 1:
            raise OSError("once more")
        return {"n": len(ctx.config["seen"])}

    graph = Graph("g").field("n", int).node("counts", counts, config={"seen": []}, retry=Retry(max_attempts=2))
    graph = graph.edge(START, "counts")
    rig = Rig()
    for number in (1, 2):
        rig.start(graph)
        rig.drain()
        rig.advance(10)
        rig.drain()
        assert rig.run(f"run-{number}").fields == {"n": 1}
