"""How the commands show a graph in a terminal: what leads where and when, what runs, what is kept, what is wrong."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group
from rich.text import Text

from docket_celery.compiler import graph_hash
from docket_celery.graph.diagnostics import Diagnostic
from docket_celery.graph.document import Graph
from docket_celery.graph.elements import NO_RETRY, START, UNSET, Edge, Node
from docket_celery.worker.tables import cell, table


def graph_tables(graph: Graph, version: str) -> Group:
    """Edges from the start on, with guards and barriers; then nodes and fields."""
    bound = "" if graph.max_supersteps is None else f", at most {graph.max_supersteps} supersteps"
    parts: list[Any] = [
        Text("graph ").append_text(cell(graph.id, whole=True)).append(f"\n{version}{bound}"),
        table("edges", ("from", "to", "when"), map(_edge_record, _from_the_start(graph))),
        table("nodes", ("id", "call", "inputs", "writes", "policy"), map(_node_record, graph.nodes.values())),
    ]
    if graph.fields:
        parts.append(table("fields", ("name", "reducer", "kind", "schema", "default"), _field_records(graph)))
    return Group(*parts)


def findings_record(graph: Graph | None, found: Sequence[Diagnostic]) -> dict[str, Any]:
    """Every finding, and which version this would be; None for a document that could not be read."""
    return {
        "graph_id": None if graph is None else graph.id,
        "graph_hash": None if graph is None else graph_hash(graph),
        "diagnostics": [
            {"severity": one.severity.value, "code": one.code, "path": one.path, "message": one.message}
            for one in found
        ],
    }


def findings_text(name: str, found: Sequence[Diagnostic]) -> Text:
    """One paragraph for each finding about the file, or that there is none."""
    if not found:
        return Text(f"{name} is sound")
    return Text("\n").join(cell(str(diagnostic), whole=True) for diagnostic in found)


def _from_the_start(graph: Graph) -> Iterator[Edge]:
    """The edges in the order in which a run may come to them, breadth first; then those that it cannot come to."""
    left = {edge.id: edge for edge in sorted(graph.edges.values(), key=lambda edge: edge.id)}
    outgoing = defaultdict(list)
    for edge in left.values():
        for source in edge.sources:
            outgoing[source].append(edge)
    reached, waiting = {START}, deque([START])
    while waiting:
        for edge in outgoing[waiting.popleft()]:
            if edge.id in left and reached.issuperset(edge.sources):
                yield left.pop(edge.id)
                if edge.target not in reached:
                    reached.add(edge.target)
                    waiting.append(edge.target)
    yield from left.values()


def _edge_record(edge: Edge) -> dict[str, Any]:
    return {
        "from": f"all of {', '.join(edge.sources)}" if edge.is_barrier else edge.sources[0],
        "to": edge.target,
        "when": edge.when,
    }


def _node_record(node: Node) -> dict[str, Any]:
    policy = [
        None if node.retry == NO_RETRY else f"{node.retry.max_attempts} attempts",
        None if node.timeout is None else f"{node.timeout:g} s",
        None if node.queue is None else f"queue {node.queue}",
        "detached" if node.detached else None,
    ]
    return {
        "id": node.id,
        "call": node.call,
        "inputs": "its parameters" if node.inputs is None else ", ".join(node.inputs),
        "writes": node.writes,
        "policy": ", ".join(filter(None, policy)),
    }


def _field_records(graph: Graph) -> Iterator[dict[str, Any]]:
    for field in graph.fields.values():
        kinds = ("input" if field.is_input else None, "output" if field.name in graph.outputs else None)
        yield {
            "name": field.name,
            "reducer": field.reducer,
            "kind": ", ".join(filter(None, kinds)),
            "schema": dict(field.schema) or None,
            "default": None if field.default is UNSET else field.default,
        }
