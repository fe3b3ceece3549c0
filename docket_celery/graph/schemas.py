"""Schemas of values: from Python types or JSON Schema documents, compiled once and checked cheaply.

A schema never converts or fills in anything: it only says whether a JSON value fits. Rebuilding Python types from
JSON (`reviver`) is a separate step that only a node's call makes.
"""

from __future__ import annotations

import re
import types
from collections import abc
from collections.abc import Callable, Mapping
from datetime import time
from typing import Any, Final, Literal, NewType, NoReturn, Union, get_args, get_origin

import jsonschema_rs
from pydantic import PydanticUserError, TypeAdapter

from docket_celery.errors import GraphFormatError, shown
from docket_celery.graph.plain import plain_copy

LONGEST_MESSAGE: Final = 300
"""Characters of a violation's path and of its message, which quotes the offending value: both may be megabytes."""

_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def json_schema_of(type_or_schema: Any) -> dict[str, Any]:
    """The JSON Schema of a Python type, or the given JSON Schema mapping, checked, in a private copy.

    Raises `GraphFormatError` when the type has no JSON form or the schema is not valid.
    """
    if isinstance(type_or_schema, Mapping):
        schema = plain_copy(type_or_schema, "schema")
    elif type_or_schema is None or isinstance(type_or_schema, bool | int | float | str | list | tuple):
        raise GraphFormatError(f"a schema is a Python type or a JSON Schema mapping, got {shown(type_or_schema)}")
    else:
        try:
            schema = plain_copy(TypeAdapter(type_or_schema).json_schema(), "schema")
        except (PydanticUserError, TypeError, ValueError, NameError, AttributeError) as error:
            reason = str(error).splitlines()[0]
            raise GraphFormatError(f"{shown(type_or_schema)} has no JSON Schema: {reason}") from error
    Schema(schema)
    return dict(schema)


class Schema:
    """A compiled JSON Schema (draft 2020-12 unless `$schema` says otherwise). Formats are checked; nothing is fetched.

    `number` takes integers of any size and `integer` takes 1.0; neither changes the value.
    """

    __slots__ = ("_validator", "document")

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document: Final = document
        try:
            self._validator = (
                jsonschema_rs.validator_for(
                    dict(document), validate_formats=True, formats={"time": _is_time}, retriever=_fetch_nothing
                )
                if document
                else None
            )
        except Exception as error:
            reason = str(error).splitlines()[0]
            raise GraphFormatError(f"not a valid JSON Schema: {reason:.{LONGEST_MESSAGE}}") from error

    def problem(self, value: Any) -> str | None:
        """Path and message of the violation that comes first by path, or None."""
        if self._validator is None:
            return None
        try:
            return self._first_problem(value)
        except UnicodeEncodeError:
            return self._first_problem(_without_surrogates(value))

    def _first_problem(self, value: Any) -> str | None:
        assert self._validator is not None
        if self._validator.is_valid(value):
            return None
        _, path, message = min(
            ([(type(part) is str, part) for part in error.instance_path], error.instance_path, error.message)
            for error in self._validator.iter_errors(value)
        )
        return f"{_cut(_written(path))}: {_cut(message)}"

    def __eq__(self, other: object) -> bool:
        return self.document == other.document if isinstance(other, Schema) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(sorted(self.document)))

    def __repr__(self) -> str:
        return f"Schema({self.document!r})"


def reviver(annotation: Any) -> Callable[[Any], Any] | None:
    """What rebuilds an annotated parameter's Python value from its JSON form; None when that form is the value itself.

    An annotation that cannot be resolved or has no validator of its own is treated as none at all.
    """
    if _is_json_itself(annotation):
        return None
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(annotation)
        complete = adapter.pydantic_complete
    except (PydanticUserError, TypeError, ValueError, NameError, AttributeError):
        return None
    return adapter.validate_python if complete else None


def holds_another_version(annotation: Any, document: Mapping[str, Any]) -> bool:
    """Whether the annotation has a type whose namesake in the JSON Schema `document` is another one: it was made from
    the type as another release has it.
    """
    try:
        here = _named(TypeAdapter(annotation).json_schema())
    except Exception:  # Types may have schemas of their own making, or none.
        return False
    there = _named(document)
    return any(here[name] != there[name] for name in here.keys() & there.keys())


def _named(document: Mapping[str, Any]) -> dict[str, Any]:
    """The types of a schema that have a name: those that it defines, and itself."""
    definitions = dict(document.get("$defs", {}))
    itself = {key: value for key, value in document.items() if key != "$defs"}
    return {**definitions, itself["title"]: itself} if "title" in itself else definitions


def _is_json_itself(annotation: Any) -> bool:
    if annotation is Any or annotation is None or isinstance(annotation, str):
        return True
    if annotation in (str, int, float, bool, dict, list, object, type(None), Mapping, abc.Sequence, abc.MutableMapping):
        return True
    if isinstance(annotation, NewType):
        return _is_json_itself(annotation.__supertype__)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return all(type(argument) in (str, int, bool, type(None)) for argument in arguments)
    if origin in (list, dict, abc.Mapping, abc.Sequence, abc.MutableMapping, Union, types.UnionType):
        return all(_is_json_itself(argument) for argument in arguments)
    return False


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_MESSAGE else f"{text[:LONGEST_MESSAGE]}..."


def _written(path: list[str | int]) -> str:
    return "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)


def _is_time(text: str) -> bool:
    """RFC 3339 demands an offset, which most times of day do not have."""
    try:
        time.fromisoformat(text)
    except ValueError:
        return False
    return True


def _fetch_nothing(uri: str) -> NoReturn:
    raise ValueError(f"{uri} is not part of the schema, and schemas are never fetched")


def _without_surrogates(value: Any) -> Any:
    """The value with U+FFFD for each lone surrogate, which the validator cannot take; lengths stay the same."""
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    return value
