"""Values that somebody still holds: whatever is done to them afterwards, the run has what was given and returned."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from support.rig import Rig

from docket_celery import START, Graph, RunStatus
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
