"""Stand-ins for nodes: a function, a value or an error in place of code that a test must not run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import update_wrapper
from typing import Any
from unittest.mock import AsyncMock

from docket_celery.errors import InvalidInput, shown
from docket_celery.graph.document import Graph
from docket_celery.graph.elements import Node
from docket_celery.graph.functions import is_task, parameters_of


def with_stubs(graph: Graph, stubs: Mapping[str, Any]) -> Graph:
    """The graph with these nodes' code replaced, by node id; `InvalidInput` for an id that it does not have.

    Whatever can be called, a mock too, takes the node's parameters by name, those it declares; other parameters of its
    own are fields. An exception is raised at every call, and anything else is what every call returns. Retry, timeout,
    `writes` and configuration stay; a stub always runs in this process.
    """
    unknown = sorted(set(stubs) - set(graph.nodes))
    if unknown:
        raise InvalidInput(f"graph {graph.id!r} has no node {shown(unknown[0])} to stub; it has {sorted(graph.nodes)}")
    stubbed = {id: _stubbed(node, stubs[id]) if id in stubs else node for id, node in graph.nodes.items()}
    return replace(graph, nodes=stubbed)


def _stubbed(node: Node, stub: Any) -> Node:
    is_error = isinstance(stub, type) and issubclass(stub, BaseException)
    function = _function(stub) if callable(stub) and not is_error else _always(stub)
    parameters = parameters_of(function)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    names = {parameter.name for parameter in parameters}
    inputs = {name: source for name, source in (node.inputs or {}).items() if takes_any or name in names}
    bound = Graph("stub").node(node.id, function, inputs=inputs).nodes[node.id]
    return replace(node, call=f"stub:{node.id}", inputs=bound.inputs, function=function, queue=None, detached=False)


def _function(stub: Callable[..., Any]) -> Callable[..., Any]:
    """The stub as a function with the same parameters: mocks, methods and partials have no name for a node."""
    if is_task(stub):
        return stub

    def called(**given: Any) -> Any:
        return stub(**given)

    async def awaited(**given: Any) -> Any:
        return await stub(**given)

    return update_wrapper(awaited if _is_async(stub) else called, stub, assigned=(), updated=())


def _is_async(stub: Callable[..., Any]) -> bool:
    return isinstance(stub, AsyncMock) or any(map(inspect.iscoroutinefunction, (stub, stub.__call__)))  # type: ignore[operator]


def _always(value: Any) -> Callable[[], Any]:
    def stub() -> Any:
        if isinstance(value, BaseException | type):
            raise value
        return value

    return stub
