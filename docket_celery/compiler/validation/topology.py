"""Rules about the shape: identifiers, edges, reachability, barriers, cycles. Iterative, so that depth is no limit."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

from docket_celery.compiler.validation.names import did_you_mean
from docket_celery.errors import shown
from docket_celery.graph.diagnostics import Diagnostic
from docket_celery.graph.document import Graph
from docket_celery.graph.elements import FINISH, MOST_COUNTED, START, Edge

NODE_ID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,127}", re.ASCII)
LONGEST_GRAPH_ID: Final = 255


def check_topology(graph: Graph, default_max_supersteps: int | None) -> Iterator[Diagnostic]:
    yield from _identifiers(graph)
    yield from _endpoints(graph)
    yield from _reachability(graph)
    yield from _bound(graph, default_max_supersteps)


def _identifiers(graph: Graph) -> Iterator[Diagnostic]:
    if len(graph.id) > LONGEST_GRAPH_ID or "\x00" in graph.id or re.search("[\ud800-\udfff]", graph.id):
        yield Diagnostic(
            code="invalid_graph_id",
            path="id",
            message=f"must have at most {LONGEST_GRAPH_ID} characters, no NUL and no lone surrogate, got {graph.id!r}",
        )
    for id in graph.nodes:
        if not NODE_ID.fullmatch(id):
            yield Diagnostic(
                code="invalid_node_id",
                path=f"nodes.{id}",
                message="a node's id is up to 128 letters, digits and any of _ . : -, and does not begin with . : -",
            )


def _endpoints(graph: Graph) -> Iterator[Diagnostic]:
    if not any(START in edge.sources for edge in graph.edges.values()):
        yield Diagnostic(code="no_start", path="edges", message="no edge leads from START, so nothing would ever run")
    for edge in graph.edges.values():
        found = [_source_problem(graph, edge, source) for source in edge.sources] + [
            _target_problem(graph, edge.target)
        ]
        for code, message in filter(None, found):
            yield Diagnostic(code=code, path=f"edges.{edge.id}", message=message)


def _source_problem(graph: Graph, edge: Edge, source: str) -> tuple[str, str] | None:
    if source == FINISH:
        return "finish_as_source", "FINISH ends a branch; nothing leads on from it"
    if source == START:
        waits = "START cannot be waited for; leave it out of the barrier"
        return ("start_in_barrier", waits) if edge.is_barrier else None
    if source not in graph.nodes:
        return "unknown_source", f"there is no node {source!r}{did_you_mean(source, graph.nodes)}"
    return None


def _target_problem(graph: Graph, target: str) -> tuple[str, str] | None:
    if target == START:
        return "start_as_target", "START only begins a run; lead to a node or FINISH"
    if target != FINISH and target not in graph.nodes:
        return "unknown_target", f"there is no node {target!r}{did_you_mean(target, graph.nodes)}"
    return None


def _reachability(graph: Graph) -> Iterator[Diagnostic]:
    reached = _reached(graph)
    for id in graph.nodes:
        if id not in reached:
            yield Diagnostic(
                code="unreachable_node",
                path=f"nodes.{id}",
                message="no path of edges leads here from START; add an edge to it or remove it",
            )
    for edge in graph.edges.values():
        never = sorted(source for source in edge.sources if source in graph.nodes and source not in reached)
        if edge.is_barrier and never:
            yield Diagnostic(
                code="barrier_never_fires",
                path=f"edges.{edge.id}",
                message=f"waits for {', '.join(map(repr, never))}, which can never have completed before it fires",
            )


def _reached(graph: Graph) -> set[str]:
    """Nodes that some run could activate: by an edge from one, or by a barrier whose sources all are such nodes."""
    outgoing: defaultdict[str, list[tuple[str, Edge]]] = defaultdict(list)
    for id, edge in graph.edges.items():
        for source in edge.sources:
            outgoing[source].append((id, edge))
    missing = {id: len(edge.sources) for id, edge in graph.edges.items()}
    reached, pending = {START}, [START]
    while pending:
        for id, edge in outgoing[pending.pop()]:
            missing[id] -= 1
            if missing[id] == 0 and edge.target not in reached:
                reached.add(edge.target)
                pending.append(edge.target)
    return reached


def _bound(graph: Graph, default_max_supersteps: int | None) -> Iterator[Diagnostic]:
    if graph.max_supersteps is not None:
        if not 1 <= graph.max_supersteps <= MOST_COUNTED:
            yield Diagnostic(
                code="invalid_max_supersteps",
                path="max_supersteps",
                message=f"must be from 1 to 2^63 - 1, got {shown(graph.max_supersteps)}",
            )
    elif default_max_supersteps is None and (cycle := _cycle(graph)):
        yield Diagnostic(
            code="unbounded_cycle",
            path="max_supersteps",
            message=f"a graph with a cycle ({_shown(cycle)}) must bound its supersteps: set max_supersteps",
        )


def _cycle(graph: Graph) -> list[str]:
    """One cycle, its first node repeated at the end; empty when there is none."""
    before: defaultdict[str, set[str]] = defaultdict(set)
    after: defaultdict[str, set[str]] = defaultdict(set)
    for edge in graph.edges.values():
        for source in edge.sources:
            before[edge.target].add(source)
            after[source].add(edge.target)
    remaining = {id: len(before[id]) for id in set(before) | set(after)}
    free = [id for id, count in remaining.items() if count == 0]
    while free:
        id = free.pop()
        del remaining[id]
        for target in after[id]:
            remaining[target] -= 1
            if remaining[target] == 0:
                free.append(target)
    return _walk_back(remaining, before)


def _walk_back(remaining: Iterable[str], before: dict[str, set[str]]) -> list[str]:
    """Everything in `remaining` has a predecessor there, so that going back must meet itself."""
    members = set(remaining)
    if not members:
        return []
    trail: dict[str, None] = {}
    id = min(members)
    while id not in trail:
        trail[id] = None
        id = min(before[id] & members)
    walked = list(trail)
    return [id, *reversed(walked[walked.index(id) :])]


def _shown(cycle: list[str]) -> str:
    shown = cycle if len(cycle) <= 8 else [*cycle[:4], "...", *cycle[-3:]]
    return " -> ".join(shown)
