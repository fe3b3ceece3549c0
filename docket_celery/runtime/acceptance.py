"""Which values a field takes: the check of every write, and of what a caller gives (run input, answers).

Decides, and changes nothing.
"""

from __future__ import annotations

from typing import Any

from docket_celery.errors import InvalidInput, ValueRefused
from docket_celery.program import RuntimeField, RuntimeGraph
from docket_celery.run.document import JsonValue
from docket_celery.run.values import normalise
from docket_celery.runtime.options import RuntimeOptions


def write_problem(field: RuntimeField, write: JsonValue) -> str | None:
    """Why a field does not take this write, or None. The reducer's demands come before the schema's."""
    return field.reducer.problem(write) or field.schema.problem(write)


def accept(program: RuntimeGraph, name: str, value: Any, options: RuntimeOptions) -> JsonValue:
    """A caller's value for a field (run input, answer) in its committed form; `InvalidInput` names what is wrong."""
    field = program.fields[name]
    try:
        kept = field.reducer.normalise(normalise(value, f"$.{name}", max_bytes=options.max_value_bytes))
    except ValueRefused as refusal:
        raise InvalidInput(f"field {name!r}: {refusal}") from refusal
    problem = write_problem(field, kept)
    if problem is not None:
        raise InvalidInput(f"field {name!r}: {problem}")
    return kept
