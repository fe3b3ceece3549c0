"""Stand-ins for nodes: a function, a value or an error in place of code that a test must not run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from docket_celery.errors import InvalidInput, shown
from docket_celery.graph.document import Graph
from docket_celery.graph.elements import Node
from docket_celery.graph.functions import parameters_of


def with_stubs(graph: Graph, stubs: Mapping[str, Any]) -> Graph:
    """The graph with these nodes' code replaced, by node id; `InvalidInput` for an id that it does not have.

    A function takes the node's parameters by name, those it declares; other parameters of its own are fields. An
    exception is raised at every call, and anything else is what every call returns. Retry, timeout, `writes` and
    configuration stay; a stub always runs in this process.
    """
    unknown = sorted(set(stubs) - set(graph.nodes))
    if unknown:
        raise InvalidInput(f"graph {graph.id!r} has no node {shown(unknown[0])} to stub; it has {sorted(graph.nodes)}")
    stubbed = {id: _stubbed(node, stubs[id]) if id in stubs else node for id, node in graph.nodes.items()}
    return replace(graph, nodes=stubbed)


def _stubbed(node: Node, stub: Any) -> Node:
    function = stub if callable(stub) else _always(stub)
    parameters = parameters_of(function)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    names = {parameter.name for parameter in parameters}
    inputs = {name: source for name, source in (node.inputs or {}).items() if takes_any or name in names}
    bound = Graph("stub").node(node.id, function, inputs=inputs).nodes[node.id]
    return replace(node, call=f"stub:{node.id}", inputs=bound.inputs, function=function, queue=None, detached=False)


def _always(value: Any) -> Callable[[], Any]:
    def stub() -> Any:
        if isinstance(value, BaseException):
            raise value
        return value

    return stub
