"""From a document to a program, in reading order: resolve the nodes, check every rule, lower.

    verify       every problem of a graph at once, as diagnostics
    publishable  the same, judged for other processes than the author's
    compile      the program, or `InvalidGraph` with every error

With a resolver the result is a program whose nodes carry their callables; without one it is a plan, which is enough to
start, resolve and cancel. Nothing here does I/O or calls a node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from docket_celery.compiler.canonical import canonical, canonical_bytes, graph_hash
from docket_celery.compiler.lowering import lower
from docket_celery.compiler.nodes import Contract, Resolver, chain, contract_of, local_resolver
from docket_celery.compiler.validation.fields import check_fields
from docket_celery.compiler.validation.guards import check_guards
from docket_celery.compiler.validation.policies import check_policies, not_importable, unknown_node
from docket_celery.compiler.validation.topology import check_topology
from docket_celery.errors import GraphFormatError, InvalidGraph, UnknownNode
from docket_celery.graph.diagnostics import Diagnostic, Severity
from docket_celery.graph.document import Graph
from docket_celery.graph.functions import is_importable
from docket_celery.program import RuntimeGraph

__all__ = [
    "Resolver",
    "canonical",
    "canonical_bytes",
    "chain",
    "compile",
    "graph_hash",
    "local_resolver",
    "publishable",
    "verify",
]


def verify(
    graph: Graph,
    resolver: Resolver | None = None,
    *,
    default_max_supersteps: int | None = None,
    max_value_bytes: int | None = None,
) -> tuple[Diagnostic, ...]:
    """Everything that is wrong with the graph, ordered by path; empty when it is sound.

    default_max_supersteps  bound that the runtime will apply to a graph which sets none
    max_value_bytes         bound on schemas, defaults, constants and configurations as JSON
    """
    contracts, diagnostics = _contracts(graph, resolver)
    diagnostics += _rules(graph, contracts, default_max_supersteps, max_value_bytes)
    return _in_order(diagnostics)


def publishable(graph: Graph, resolver: Resolver | None = None, **bounds: Any) -> tuple[Diagnostic, ...]:
    """As `verify`, and also every node whose name no other process could find (`node_not_importable`).

    Node names are otherwise not looked up: the process that publishes need not have the code. `resolver` answers for
    names registered in every process; `bounds` are those of `verify`.
    """
    hopeless = [
        not_importable(node)
        for node in graph.nodes.values()
        if not is_importable(node.call) and not (resolver is not None and _knows(resolver, node.call))
    ]
    return _in_order([*verify(graph, **bounds), *hopeless])


def compile(
    graph: Graph,
    resolver: Resolver | None = None,
    *,
    default_max_supersteps: int | None = None,
    max_value_bytes: int | None = None,
) -> RuntimeGraph:
    """The compiled graph; `InvalidGraph` with every error when it does not verify. Arguments are those of `verify`."""
    contracts, diagnostics = _contracts(graph, resolver)
    diagnostics += _rules(graph, contracts, default_max_supersteps, max_value_bytes)
    errors = [found for found in diagnostics if found.severity is Severity.ERROR]
    if errors:
        raise InvalidGraph(graph.id, _in_order(errors))
    return lower(graph, contracts)


def _contracts(graph: Graph, resolver: Resolver | None) -> tuple[dict[str, Contract], list[Diagnostic]]:
    """The contract of each inline node, and what kept others from having one."""
    contracts: dict[str, Contract] = {}
    diagnostics: list[Diagnostic] = []
    if resolver is None:
        return contracts, diagnostics
    for node in graph.nodes.values():
        if node.detached or node.queue is not None:
            continue
        try:
            contracts[node.id] = contract_of(resolver(node.call))
        except UnknownNode as error:
            diagnostics.append(unknown_node(node, str(error)) if is_importable(node.call) else not_importable(node))
        except GraphFormatError as error:
            diagnostics.append(Diagnostic(code="node_not_callable", path=f"nodes.{node.id}.call", message=str(error)))
    return contracts, diagnostics


def _rules(
    graph: Graph,
    contracts: dict[str, Contract],
    default_max_supersteps: int | None,
    max_value_bytes: int | None,
) -> Iterator[Diagnostic]:
    yield from check_topology(graph, default_max_supersteps)
    yield from check_fields(graph, contracts, max_value_bytes)
    yield from check_guards(graph)
    yield from check_policies(graph, contracts, max_value_bytes)


def _in_order(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    return tuple(sorted(diagnostics, key=lambda found: (found.path, found.code, found.message)))


def _knows(resolver: Resolver, name: str) -> bool:
    try:
        resolver(name)
    except UnknownNode:
        return False
    return True
