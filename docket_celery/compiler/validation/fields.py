"""Rules about state: field names, reducers, defaults, outputs, and the fields that nodes read and write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from docket_celery.compiler.nodes import Contract, bindings_of
from docket_celery.compiler.validation.names import did_you_mean
from docket_celery.errors import GraphFormatError, ValueRefused
from docket_celery.graph.diagnostics import Diagnostic, Severity
from docket_celery.graph.document import Graph
from docket_celery.graph.elements import UNSET, ConstantInput, Field, Node
from docket_celery.graph.functions import CONTEXT_PARAMETER
from docket_celery.graph.guards import CEL_IDENTIFIER, CEL_RESERVED
from docket_celery.graph.reducers import REDUCERS, Reducer
from docket_celery.graph.schemas import Schema
from docket_celery.run.values import normalise

LONGEST_FIELD_NAME: Final = 128


def check_fields(graph: Graph, contracts: Mapping[str, Contract], max_value_bytes: int | None) -> Iterator[Diagnostic]:
    for field in graph.fields.values():
        yield from _name(field)
        yield from _value(field, max_value_bytes)
    for name in graph.outputs:
        if name not in graph.fields:
            yield Diagnostic(
                code="unknown_output",
                path=f"outputs.{name}",
                message=f"there is no such field{did_you_mean(name, graph.fields)}",
            )
    for node in graph.nodes.values():
        yield from _inputs(graph, node, contracts.get(node.id), max_value_bytes)
        if node.writes is not None and node.writes not in graph.fields:
            yield Diagnostic(
                code="unknown_write",
                path=f"nodes.{node.id}.writes",
                message=f"there is no field {node.writes!r}{did_you_mean(node.writes, graph.fields)}",
            )


def _name(field: Field) -> Iterator[Diagnostic]:
    path = f"fields.{field.name}"
    if len(field.name) > LONGEST_FIELD_NAME or not CEL_IDENTIFIER.fullmatch(field.name):
        yield Diagnostic(
            code="invalid_field_name",
            path=path,
            message=f"a field's name is a letter or _, then letters, digits and _; at most {LONGEST_FIELD_NAME} in all",
        )
    elif field.name in CEL_RESERVED or field.name == CONTEXT_PARAMETER:
        owner = "for the node context" if field.name == CONTEXT_PARAMETER else "in guards"
        yield Diagnostic(code="reserved_field_name", path=path, message=f"the name is reserved {owner}; choose another")


def _value(field: Field, max_value_bytes: int | None) -> Iterator[Diagnostic]:
    path = f"fields.{field.name}"
    reducer = REDUCERS.get(field.reducer)
    if reducer is None:
        known = ", ".join(sorted(REDUCERS))
        yield Diagnostic(
            code="unknown_reducer",
            path=f"{path}.reducer",
            message=f"there is no reducer {field.reducer!r}; there are {known}",
        )
    try:
        schema = Schema(field.schema)
        normalise(field.schema, "$", max_bytes=max_value_bytes)
    except (GraphFormatError, ValueRefused) as error:
        yield Diagnostic(code="invalid_schema", path=f"{path}.schema", message=str(error))
        return
    if field.default is not UNSET:
        yield from _default(field, reducer, schema, max_value_bytes)
    elif reducer is not None and reducer.zero is not None and (problem := schema.problem(reducer.zero())):
        yield Diagnostic(
            code="reducer_schema_mismatch",
            path=f"{path}.schema",
            message=f"reducer {reducer.name!r} starts from {reducer.zero()!r}, which the schema refuses ({problem}); "
            "correct the schema or give a default",
        )


def _default(
    field: Field, reducer: Reducer | None, schema: Schema, max_value_bytes: int | None
) -> Iterator[Diagnostic]:
    path = f"fields.{field.name}.default"
    try:
        value = normalise(field.default, "$", max_bytes=max_value_bytes)
    except ValueRefused as error:
        yield Diagnostic(code="default_refused", path=path, message=str(error))
        return
    problem = schema.problem(value) or (reducer and reducer.problem_of_value(value))
    if problem:
        yield Diagnostic(code="default_mismatch", path=path, message=problem)


def _inputs(graph: Graph, node: Node, contract: Contract | None, max_value_bytes: int | None) -> Iterator[Diagnostic]:
    implied = node.inputs is None
    for name, source in bindings_of(node, contract).items():
        path = f"nodes.{node.id}.inputs.{name}"
        if isinstance(source, ConstantInput):
            try:
                normalise(source.value, "$", max_bytes=max_value_bytes)
            except ValueRefused as error:
                yield Diagnostic(code="constant_refused", path=path, message=str(error))
        elif source.field not in graph.fields and source.optional:
            if source.field != name:
                yield Diagnostic(
                    code="unknown_optional_input",
                    path=path,
                    message=f"there is no field {source.field!r}, so the parameter is never given"
                    f"{did_you_mean(source.field, graph.fields)}",
                    severity=Severity.WARNING,
                )
        elif source.field not in graph.fields:
            what = "the parameter has no default and is no field" if implied else f"there is no field {source.field!r}"
            yield Diagnostic(
                code="unknown_input",
                path=path,
                message=f"{what}; add it, or rebind in inputs{did_you_mean(source.field, graph.fields)}",
            )
