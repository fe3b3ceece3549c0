"""A verified document, and the contracts of its nodes, into what the runtime reads. Everything in sorted order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from docket_celery.compiler.canonical import graph_hash
from docket_celery.compiler.nodes import Contract, bind
from docket_celery.graph.document import Graph
from docket_celery.graph.elements import START, UNSET, Edge, Field, Node
from docket_celery.graph.guards import parse_guard
from docket_celery.graph.reducers import REDUCERS
from docket_celery.graph.schemas import Schema
from docket_celery.program import RuntimeEdge, RuntimeField, RuntimeGraph, RuntimeNode
from docket_celery.run.values import normalise


def lower(graph: Graph, contracts: Mapping[str, Contract]) -> RuntimeGraph:
    """Takes a graph that verification has passed. Without contracts it becomes a plan."""
    return RuntimeGraph(
        graph_id=graph.id,
        graph_hash=graph_hash(graph),
        fields={name: _field(graph.fields[name]) for name in sorted(graph.fields)},
        nodes={id: _node(graph.nodes[id], contracts.get(id), graph.fields) for id in sorted(graph.nodes)},
        outgoing=_outgoing(graph),
        outputs=tuple(sorted(graph.outputs)),
        max_supersteps=graph.max_supersteps,
    )


def _field(field: Field) -> RuntimeField:
    reducer = REDUCERS[field.reducer]
    has_initial, initial = False, None
    if field.default is not UNSET:
        has_initial, initial = True, normalise(field.default, f"$.{field.name}", max_bytes=None)
    elif reducer.zero is not None:
        has_initial, initial = True, reducer.zero()
    return RuntimeField(
        name=field.name,
        reducer=reducer,
        schema=Schema(field.schema),
        is_input=field.is_input,
        has_initial=has_initial,
        initial=initial,
    )


def _node(node: Node, contract: Contract | None, fields: Mapping[str, Any]) -> RuntimeNode:
    return RuntimeNode(
        id=node.id,
        call=None if contract is None else contract.call,
        parameters=bind(node, contract, fields),
        wants_context=contract is not None and contract.wants_context,
        is_async=contract is not None and contract.is_async,
        writes=node.writes,
        retry=node.retry,
        timeout=node.timeout,
        config=normalise(dict(node.config), "$", max_bytes=None),
    )


def _outgoing(graph: Graph) -> dict[str, tuple[RuntimeEdge, ...]]:
    """Every source has an entry, also one that nothing leads on from."""
    by_source: defaultdict[str, list[RuntimeEdge]] = defaultdict(list)
    for id in sorted(graph.edges):
        edge = _edge(graph.edges[id])
        for source in edge.sources:
            by_source[source].append(edge)
    return {source: tuple(by_source[source]) for source in sorted({START, *graph.nodes})}


def _edge(edge: Edge) -> RuntimeEdge:
    return RuntimeEdge(
        id=edge.id,
        sources=tuple(sorted(edge.sources)),
        target=edge.target,
        guard=None if edge.when is None else parse_guard(edge.when),
        is_barrier=edge.is_barrier,
    )
