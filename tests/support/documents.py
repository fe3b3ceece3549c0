"""Graph documents for tests of their form: one with every part, and those that cannot be read, with what is wrong."""

from __future__ import annotations

from typing import Any

from docket_celery.graph.document import Graph
from docket_celery.graph.elements import FINISH, START, ConstantInput, FieldInput, Retry

FULL = (
    Graph("order", max_supersteps=9)
    .input("order_id", str, "o-1")
    .field("log", list[str], reducer="append")
    .field("anything")
    .node("a", "m:a")
    .node(
        "b",
        "m:b",
        inputs={
            "x": FieldInput(field="log", path=(0, "k"), optional=True),
            "y": ConstantInput(value=None),
            "z": "anything",
        },
        writes="log",
        retry=Retry(max_attempts=2, backoff=1),
        timeout=5,
        config={"k": [1, 1.0, None]},
        queue="gpu",
        detached=True,
    )
    .edge(START, "a")
    .edge(["b", "a"], FINISH, when="anything == null")
    .output("log")
)
"""Every key that a document can have."""


def edited(**changes: Any) -> dict[str, Any]:
    return {"version": 1, "id": "g", **changes}


MALFORMED: list[tuple[Any, str]] = [
    ([], "$"),
    (None, "$"),
    ({"id": "g"}, "$.version"),
    ({"version": 2, "id": "g"}, "$.version"),
    ({"version": True, "id": "g"}, "$.version"),
    ({"version": 1}, "$.id"),
    (edited(id=""), "$.id"),
    (edited(nodez=[]), "$: unknown nodez"),
    (edited(max_supersteps="9"), "$.max_supersteps"),
    (edited(fields={}), "$.fields"),
    (edited(fields=[{}]), "$.fields[0].name"),
    (edited(fields=[{"name": "a"}, {"name": "a"}]), "$.fields[1]"),
    (edited(fields=[{"name": "a", "schema": {"type": "x"}}]), "$.fields[0].schema"),
    (edited(fields=[{"name": "a", "default": {"k": b"x"}}]), "$.fields[0].default.k"),
    (edited(fields=[{"name": "a", "input": 1}]), "$.fields[0].input"),
    (edited(nodes=[{"id": "a"}]), "$.nodes[0].call"),
    (edited(nodes=[{"id": "a", "call": "m:a", "colour": 1}]), "$.nodes[0]: unknown colour"),
    (edited(nodes=[{"id": "a", "call": "m:a", "timeout": True}]), "$.nodes[0].timeout"),
    (edited(nodes=[{"id": "a", "call": "m:a", "retry": {"backoff": -1}}]), "$.nodes[0].retry"),
    (edited(nodes=[{"id": "a", "call": "m:a", "retry": {"max_attempts": 0}}]), "$.nodes[0].retry"),
    (edited(nodes=[{"id": "a", "call": "m:a", "retry": {"tries": 1}}]), "$.nodes[0].retry"),
    (edited(nodes=[{"id": "a", "call": "m:a", "inputs": {"ctx": {"field": "a"}}}]), "$.nodes[0].inputs"),
    (edited(nodes=[{"id": "a", "call": "m:a", "inputs": {"x": "a"}}]), "$.nodes[0].inputs.x"),
    (edited(nodes=[{"id": "a", "call": "m:a", "inputs": {"x": {}}}]), "$.nodes[0].inputs.x.field"),
    (
        edited(nodes=[{"id": "a", "call": "m:a", "inputs": {"x": {"field": "a", "constant": 1}}}]),
        "inputs.x: unknown",
    ),
    (edited(nodes=[{"id": "a", "call": "m:a", "inputs": {"x": {"field": "a", "path": [1.5]}}}]), "inputs.x.path"),
    (edited(edges=[{"from": [], "to": "a"}]), "$.edges[0].from"),
    (edited(edges=[{"from": ["a", "a"], "to": "b"}]), "$.edges[0].from"),
    (edited(edges=[{"from": 1, "to": "b"}]), "$.edges[0].from"),
    (edited(edges=[{"from": "a", "to": "b"}, {"from": "a", "to": "b"}]), "$.edges[1]"),
    (edited(outputs=["a", "a"]), "$.outputs[1]"),
    (edited(outputs=[1]), "$.outputs[0]"),
]
