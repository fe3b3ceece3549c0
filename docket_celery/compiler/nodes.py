"""Node contracts: from the name in a document to a callable whose parameters are bound.

A resolver only answers from what somebody registered. Nothing is imported, and no node is called.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, TypeAlias

from docket_celery.errors import UnknownNode
from docket_celery.graph.document import Graph
from docket_celery.graph.elements import Field, FieldInput, Node
from docket_celery.graph.functions import CONTEXT_PARAMETER, is_task, parameters_of
from docket_celery.graph.schemas import holds_another_version, reviver
from docket_celery.program import RuntimeParameter

Resolver: TypeAlias = Callable[[str], Callable[..., Any]]
"""Gives the callable registered under a name, or raises `UnknownNode`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """A callable as a node: how it is called and what it takes.

    `parameters` holds what a binding may fill, in the callable's order, by name; the value says whether it must be.
    `takes_any` tells that any other name is taken too.
    """

    call: Callable[..., Any]
    parameters: Mapping[str, bool]
    annotations: Mapping[str, Any]
    takes_any: bool
    wants_context: bool
    is_async: bool


def contract_of(function: Callable[..., Any]) -> Contract:
    """Reads the callable's signature. `GraphFormatError` when it has none that can be called by keyword."""
    parameters = parameters_of(function)
    target: Any = getattr(function, "run") if is_task(function) else function  # noqa: B009
    named = {parameter.name: parameter for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD}
    return Contract(
        call=function,
        parameters={
            name: parameter.default is parameter.empty for name, parameter in named.items() if name != CONTEXT_PARAMETER
        },
        annotations={
            name: _resolved(parameter.annotation, target)
            for name, parameter in named.items()
            if parameter.annotation is not parameter.empty
        },
        takes_any=len(named) < len(parameters),
        wants_context=CONTEXT_PARAMETER in named,
        is_async=inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(getattr(target, "__call__", None)),  # noqa: B004
    )


def bindings_of(node: Node, contract: Contract | None) -> Mapping[str, Any]:
    """Parameter to source: the document's, or else the contract's own parameters as fields of the same names."""
    if node.inputs is not None:
        return node.inputs
    if contract is None:
        return {}
    return {name: FieldInput(field=name, optional=not required) for name, required in contract.parameters.items()}


def bind(node: Node, contract: Contract | None, fields: Mapping[str, Field]) -> tuple[RuntimeParameter, ...]:
    """The arguments of the node's call, by name. An optional one whose field does not exist is left out for good."""
    annotations: Mapping[str, Any] = {} if contract is None else contract.annotations
    return tuple(
        _parameter(name, source, annotations.get(name), fields)
        for name, source in sorted(bindings_of(node, contract).items())
        if not isinstance(source, FieldInput) or source.field in fields or not source.optional
    )


def _parameter(name: str, source: Any, annotation: Any, fields: Mapping[str, Field]) -> RuntimeParameter:
    revive = reviver(annotation)
    if revive is None or not isinstance(source, FieldInput) or source.field not in fields:
        return RuntimeParameter(name=name, source=source, revive=revive)
    is_of_others = holds_another_version(annotation, fields[source.field].schema)
    return RuntimeParameter(name=name, source=source, revive=revive, is_of_others=is_of_others)


def local_resolver(graph: Graph) -> Resolver:
    """Answers from the functions that the graph's author passed: for tests and scripts in the author's process."""
    functions = {node.call: node.function for node in graph.nodes.values() if node.function is not None}

    def resolve(name: str) -> Callable[..., Any]:
        try:
            return functions[name]
        except KeyError:
            raise UnknownNode(f"graph {graph.id!r} was given no function for {name!r}") from None

    return resolve


def chain(*resolvers: Resolver) -> Resolver:
    """The first answer of several resolvers."""

    def resolve(name: str) -> Callable[..., Any]:
        for resolver in resolvers:
            try:
                return resolver(name)
            except UnknownNode:
                continue
        raise UnknownNode(f"nothing in this process is registered as node {name!r}")

    return resolve


def _resolved(annotation: Any, target: Any) -> Any:
    """The annotation itself, looked up where the function was written if it is text; unchanged when that fails.

    One at a time, so that a name imported for type checking only spoils no other parameter.
    """
    if not isinstance(annotation, str):
        return annotation
    namespace = getattr(inspect.unwrap(getattr(target, "__func__", target)), "__globals__", {})
    holder = SimpleNamespace(__annotations__={"it": annotation})
    try:
        return typing.get_type_hints(holder, namespace, include_extras=True)["it"]
    except Exception:
        return annotation
