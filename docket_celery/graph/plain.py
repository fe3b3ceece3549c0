"""Plain JSON inside a document: defaults, constants, node configuration, schemas.

A document keeps a private copy, so that nobody can change a graph through an object handed to an edit. Whether a
value is small and shallow enough to be kept is judged with the rest of the graph, not here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from docket_celery.errors import GraphFormatError, shown

MAX_DEPTH: Final = 200
"""Levels of lists and objects; the same bound as for committed values."""


def plain_copy(value: Any, path: str, depth: int = 0) -> Any:
    """A fresh copy of a JSON value; tuples become lists. Anything else raises `GraphFormatError` naming the path."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if depth >= MAX_DEPTH:
        raise GraphFormatError(f"{path}: nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, Mapping):
        for key in value:
            if type(key) is not str:
                raise GraphFormatError(f"{path}: keys must be strings, got {shown(key)}")
        return {key: plain_copy(item, f"{path}.{key}", depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_copy(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
    raise GraphFormatError(f"{path}: must be plain JSON (give other types in their JSON form), got {shown(value)}")
