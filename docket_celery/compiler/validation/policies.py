"""Rules about single nodes: callables, parameters, retries, timeouts, configuration, and where they run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from docket_celery.compiler.nodes import Contract
from docket_celery.compiler.validation.names import did_you_mean
from docket_celery.errors import ValueRefused
from docket_celery.graph.diagnostics import Diagnostic, Severity
from docket_celery.graph.document import Graph
from docket_celery.graph.elements import LONGEST_DELAY, Node
from docket_celery.run.values import normalise


def check_policies(graph: Graph, contracts: dict[str, Contract], max_value_bytes: int | None) -> Iterator[Diagnostic]:
    yield from _shared_names(graph)
    for node in graph.nodes.values():
        yield from _placement(node)
        yield from _timeout(node)
        yield from _retry(node)
        yield from _config(node, max_value_bytes)
        if node.id in contracts:
            yield from _parameters(node, contracts[node.id])


def not_importable(node: Node) -> Diagnostic:
    return Diagnostic(
        code="node_not_importable",
        path=f"nodes.{node.id}.call",
        message=f"no worker can find {node.call!r}: move the function to the top level of a module that workers load",
    )


def unknown_node(node: Node, reason: str) -> Diagnostic:
    return Diagnostic(code="unknown_node", path=f"nodes.{node.id}.call", message=reason)


def _shared_names(graph: Graph) -> Iterator[Diagnostic]:
    """A wrapper made with `functools.wraps` has the name of what it wraps; one of the two would run as the other."""
    functions: dict[str, Callable[..., Any]] = {}
    for node in graph.nodes.values():
        if node.function is not None and functions.setdefault(node.call, node.function) != node.function:
            yield Diagnostic(
                code="node_name_shared",
                path=f"nodes.{node.id}.call",
                message=f"another node calls a different function named {node.call!r}; mark one with @node(name=...)",
            )


def _placement(node: Node) -> Iterator[Diagnostic]:
    if node.detached or node.queue is not None:
        which = "queue" if node.queue is not None else "detached"
        yield Diagnostic(
            code="detached_unsupported",
            path=f"nodes.{node.id}.{which}",
            message="this version runs every node inline, in the vehicle; leave queue and detached out",
        )


def _timeout(node: Node) -> Iterator[Diagnostic]:
    if node.timeout is not None and not (math.isfinite(node.timeout) and 0 < node.timeout <= LONGEST_DELAY):
        yield Diagnostic(
            code="invalid_timeout",
            path=f"nodes.{node.id}.timeout",
            message=f"must be above 0 and at most {LONGEST_DELAY:g} seconds, got {node.timeout!r}",
        )


def _retry(node: Node) -> Iterator[Diagnostic]:
    retry = node.retry
    if retry.max_attempts > 1 and retry.backoff > retry.backoff_max:
        yield Diagnostic(
            code="retry_backoff_capped",
            path=f"nodes.{node.id}.retry.backoff",
            message=f"{retry.backoff:g} s exceeds backoff_max, so every delay will be {retry.backoff_max:g} s",
            severity=Severity.WARNING,
        )


def _config(node: Node, max_value_bytes: int | None) -> Iterator[Diagnostic]:
    try:
        normalise(dict(node.config), "$", max_bytes=max_value_bytes)
    except ValueRefused as error:
        yield Diagnostic(code="config_refused", path=f"nodes.{node.id}.config", message=str(error))


def _parameters(node: Node, contract: Contract) -> Iterator[Diagnostic]:
    """Judges bindings that the document spells out; implied ones come from the contract itself."""
    if node.inputs is None:
        return
    for name in node.inputs:
        if name not in contract.parameters and not contract.takes_any:
            yield Diagnostic(
                code="unknown_parameter",
                path=f"nodes.{node.id}.inputs.{name}",
                message=f"{node.call!r} has no parameter {name!r}{did_you_mean(name, contract.parameters)}",
            )
    for name, required in contract.parameters.items():
        if required and name not in node.inputs:
            yield Diagnostic(
                code="unbound_parameter",
                path=f"nodes.{node.id}.inputs.{name}",
                message=f"{node.call!r} demands parameter {name!r}; bind it to a field or a constant",
            )
