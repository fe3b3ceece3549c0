"""Rules about guards: they parse, read fields that exist, and call functions that CEL has."""

from __future__ import annotations

from collections.abc import Iterator

from docket_celery.compiler.validation.names import did_you_mean
from docket_celery.errors import GuardError
from docket_celery.graph.diagnostics import Diagnostic
from docket_celery.graph.document import Graph
from docket_celery.graph.guards import Guard, parse_guard


def check_guards(graph: Graph) -> Iterator[Diagnostic]:
    for edge in graph.edges.values():
        if edge.when is None:
            continue
        path = f"edges.{edge.id}.when"
        try:
            guard = parse_guard(edge.when)
        except GuardError as error:
            yield Diagnostic(code="invalid_guard", path=path, message=str(error))
        else:
            yield from _references(graph, guard, path)


def _references(graph: Graph, guard: Guard, path: str) -> Iterator[Diagnostic]:
    for name in guard.fields:
        if name not in graph.fields:
            yield Diagnostic(
                code="guard_unknown_field",
                path=path,
                message=f"there is no field {name!r}{did_you_mean(name, graph.fields)}",
            )
    for name in guard.types:
        if name in graph.fields:
            yield Diagnostic(
                code="guard_type_name",
                path=path,
                message=f"{name!r} means the CEL type here, not the field; a field that guards read needs another name",
            )
    for name in guard.unknown_functions:
        yield Diagnostic(code="guard_unknown_function", path=path, message=f"CEL has no function {name!r} of this form")
