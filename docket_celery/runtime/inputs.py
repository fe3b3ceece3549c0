"""A node's arguments: bound from committed state, fresh for every call, rebuilt in the parameter's Python type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from docket_celery.errors import CorruptRecord, PermanentFailure
from docket_celery.graph.elements import ConstantInput, FieldInput
from docket_celery.program import RuntimeNode, RuntimeParameter
from docket_celery.run.document import JsonValue
from docket_celery.run.values import fresh
from docket_celery.runtime.failures import message_of


def bind(node: RuntimeNode, state: Mapping[str, JsonValue]) -> dict[str, Any]:
    """Arguments for one call. `PermanentFailure` names the parameter that cannot be bound; `CorruptRecord` one that
    another release may yet bind.

    Every container is a private copy: what a node does to its arguments reaches nobody.
    """
    arguments: dict[str, Any] = {}
    for parameter in node.parameters:
        found, value = _source(parameter, state)
        if found:
            arguments[parameter.name] = _revive(node, parameter, fresh(value))
        elif not (isinstance(parameter.source, FieldInput) and parameter.source.optional):
            raise PermanentFailure(
                f"parameter {parameter.name!r} of node {node.id!r} has no value: {_place(parameter)}"
            )
    return arguments


def _source(parameter: RuntimeParameter, state: Mapping[str, JsonValue]) -> tuple[bool, JsonValue]:
    source = parameter.source
    if isinstance(source, ConstantInput):
        return True, source.value
    if source.field not in state:
        return False, None
    value = state[source.field]
    for key in source.path:
        try:
            value = value[key]
        except (LookupError, TypeError):
            return False, None
    return True, value


def _revive(node: RuntimeNode, parameter: RuntimeParameter, value: JsonValue) -> Any:
    if parameter.revive is None:
        return value
    try:
        return parameter.revive(value)
    except Exception as error:
        reason = (
            f"parameter {parameter.name!r} of node {node.id!r} cannot be rebuilt from its committed value: "
            f"{message_of(error)}"
        )
        if parameter.is_of_others:
            raise CorruptRecord(f"{reason}; its field was declared with another version of the type") from error
        raise PermanentFailure(reason) from error


def _place(parameter: RuntimeParameter) -> str:
    source = parameter.source
    assert isinstance(source, FieldInput)
    path = "".join(f"[{key!r}]" for key in source.path)
    return f"field {source.field!r}{path} is not set"
