"""Under which names the fields of dataclasses and pydantic models are kept: those that they read again.

A model has names for what it reads and for what it writes, and these may differ. One that is kept under a name that it
does not read would come back with its defaults.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from pydantic import BaseModel


def of_dataclass(value: Any) -> dict[str, Any]:
    """The values of its fields, not converted. Those of pydantic's dataclasses may have aliases."""
    aliases = {
        name: field.validation_alias
        for name, field in getattr(value, "__pydantic_fields__", {}).items()
        if isinstance(field.validation_alias, str)
    }
    return {aliases.get(field.name, field.name): getattr(value, field.name) for field in dataclasses.fields(value)}


def of_model(value: BaseModel) -> Any:
    """What it makes of itself: the values of its fields, not converted but for the models among them; or whatever a
    serializer of its own returns.
    """
    return value.model_dump(by_alias=_reads_its_aliases(type(value)), round_trip=True, warnings=False)


@lru_cache(maxsize=1_024)
def _reads_its_aliases(model: type[BaseModel]) -> bool:
    """Whether a model is kept under its aliases: not where these are only for writing and it reads the names of its
    fields, as with `serialization_alias`.
    """
    try:
        read = _names(model.model_json_schema(mode="validation"))
        written = _names(model.model_json_schema(mode="serialization"))
        return read <= written or not read <= _names(model.model_json_schema(mode="serialization", by_alias=False))
    except Exception:  # Types may have schemas of their own making, or none.
        return True


def _names(schema: Mapping[str, Any]) -> set[tuple[str, str]]:
    """What the types of a JSON Schema call their fields, each with the name of its type."""
    types = {"": schema, **schema.get("$defs", {})}
    return {(name, field) for name, type_ in types.items() for field in type_.get("properties", ())}
