"""What a state value may be, and the exact JSON form it has once committed.

A value is taken in one stated form or refused with the path of the offending part; it is never changed silently. The
form is built afresh, so that nobody can change a committed value through an object handed to us.

    None, bool, int, float, str   as they are; subclasses as their plain value; finite, at most 4,300 digits
    list, tuple                   a list
    dict, any mapping             an object; keys are strings, in their order
    datetime                      ISO 8601 with its offset; must be aware
    date, time, UUID, Decimal     their text: `2024-02-29`, `12:30:00`, `1.10`
    Enum                          its value
    dataclass, pydantic model     an object of its fields, under the names that it reads
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any, Final
from uuid import UUID

from pydantic import BaseModel

from docket_celery.errors import ValueRefused, shown
from docket_celery.run.document import JsonValue
from docket_celery.run.models import of_dataclass, of_model

MAX_DEPTH: Final = 200
"""Lists and objects within one another."""

_TOO_MANY_DIGITS: Final = 10**4_300
"""Python's own limit for reading and writing integers as text, so that what is written can be read."""
_MANY_BITS: Final = 14_000
_LONGEST_KEY_SHOWN: Final = 80
_SPLIT_CHARACTER: Final = re.compile("[\ud800-\udbff][\udc00-\udfff]")
"""Two halves of one character: JSON could not tell them from the character."""

_encoder: Final = json.JSONEncoder(ensure_ascii=True, allow_nan=False, check_circular=False, separators=(",", ":"))
_sorting_encoder: Final = json.JSONEncoder(
    ensure_ascii=True, allow_nan=False, check_circular=False, separators=(",", ":"), sort_keys=True
)


def normalise(value: Any, path: str, *, max_bytes: int | None) -> JsonValue:
    """The committed form of `value`, which is at `path` (`$.total`), sharing nothing with it.

    Raises `ValueRefused`; its code is `payload_too_large` when the compact JSON form exceeds `max_bytes` (None: no
    bound).
    """
    walk = _Walk(max_bytes)
    try:
        normal = walk.convert(value, 0)
        if max_bytes is not None and (size := encoded_size(normal)) > max_bytes:
            raise _too_large(f"{size}", max_bytes)
    except _Refused as refused:
        raise ValueRefused(path + refused.tail(), refused.reason, code=refused.code) from None
    return normal


def encode(value: JsonValue) -> str:
    """Compact ASCII JSON of a normalised value, keys in their order."""
    return _encoder.encode(value)


def encode_sorted(value: JsonValue) -> str:
    """As `encode`, keys in alphabetical order: equal text for what differs in the order of keys alone."""
    return _sorting_encoder.encode(value)


def decode(text: str) -> JsonValue:
    """Reads what `encode` wrote. `ValueError` for anything that is not JSON, NaN and infinities included."""
    return _decoder.decode(text)


def encoded_size(value: JsonValue) -> int:
    """Bytes of the compact JSON form of a normalised value."""
    return len(_encoder.encode(value))


def fresh(value: JsonValue) -> JsonValue:
    """A private copy of a normalised value, for somebody who may change it."""
    kind = type(value)
    if kind is list:
        return [fresh(item) for item in value]
    if kind is dict:
        return {key: fresh(item) for key, item in value.items()}
    return value


class _Refused(Exception):
    """A refusal on its way out; each level adds its key, the innermost first."""

    def __init__(self, reason: str, *, code: str = "value_refused") -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code
        self.keys: list[str | int] = []

    def tail(self) -> str:
        return "".join(map(_segment, reversed(self.keys)))


class _Walk:
    """One pass over one value. `least` counts bytes that its JSON form has at the very least, so that a small value
    whose shared parts unfold to an enormous one is refused early."""

    __slots__ = ("_least", "_max_bytes")

    def __init__(self, max_bytes: int | None) -> None:
        self._max_bytes = max_bytes
        self._least = 0

    def convert(self, value: Any, depth: int) -> JsonValue:
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind is str:
            return _text(value)
        if kind is int:
            return _integer(value)
        if kind is float:
            return _float(value)
        if kind is list or kind is tuple:
            return self._list(value, depth + 1)
        if kind is dict:
            return self._object(value, depth + 1)
        try:
            return self._other(value, depth)
        except _Refused:
            raise
        except Exception as error:
            # It gives its parts through code of its own, which may raise anything.
            raise _Refused(f"cannot be read: {type(error).__name__}: {error!s:.200}") from error

    def _list(self, value: Any, depth: int) -> list[JsonValue]:
        items = list(value)
        self._enter(depth, 2 * len(items))
        converted: list[JsonValue] = []
        try:
            for item in items:
                converted.append(self.convert(item, depth))
        except _Refused as refused:
            refused.keys.append(len(converted))
            raise
        return converted

    def _object(self, value: Mapping[Any, Any], depth: int) -> dict[str, JsonValue]:
        items = list(value.items())
        self._enter(depth, 5 * len(items))
        converted: dict[str, JsonValue] = {}
        for key, item in items:
            if not isinstance(key, str):
                raise _Refused(f"keys must be strings, got {shown(key)}")
            name = _text(str.__str__(key))
            if name in converted:
                raise _Refused(f"two keys would both become {name!r:.100}")
            try:
                converted[name] = self.convert(item, depth)
            except _Refused as refused:
                refused.keys.append(name)
                raise
        return converted

    def _enter(self, depth: int, least: int) -> None:
        if depth > MAX_DEPTH:
            raise _Refused(f"is nested deeper than {MAX_DEPTH} levels")
        self._least += least
        if self._max_bytes is not None and self._least > self._max_bytes:
            raise _too_large(f"more than {self._least}", self._max_bytes)

    def _other(self, value: Any, depth: int) -> JsonValue:
        """Everything that is not already JSON by its exact type."""
        if isinstance(value, Enum):
            return self.convert(value.value, depth)
        if isinstance(value, str):
            return _text(str.__str__(value))
        if isinstance(value, int):
            return _integer(int.__index__(value))
        if isinstance(value, float):
            return _float(float.__float__(value))
        for kind, form in _FORMS:
            if isinstance(value, kind):
                return form(value)
        if isinstance(value, list | tuple):
            return self._list(value, depth + 1)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._object(of_dataclass(value), depth + 1)
        if isinstance(value, BaseModel):
            return self.convert(of_model(value), depth)
        if isinstance(value, Mapping):
            return self._object(dict(value), depth + 1)
        raise _Refused(f"{type(value).__name__} has no JSON form here")


def _too_large(size: str, limit: int) -> _Refused:
    return _Refused(f"has {size} bytes as JSON; at most {limit} are allowed", code="payload_too_large")


def _text(value: str) -> str:
    if not value.isascii() and _SPLIT_CHARACTER.search(value):
        raise _Refused("holds two surrogates that JSON would join to one character")
    return value


def _integer(value: int) -> int:
    if value.bit_length() > _MANY_BITS and abs(value) >= _TOO_MANY_DIGITS:
        raise _Refused("is an integer of more than 4,300 digits")
    return value


def _float(value: float) -> float:
    if not math.isfinite(value):
        raise _Refused(f"is {value!r}, which JSON does not have")
    return value


def _datetime(value: datetime) -> str:
    offset = value.utcoffset()
    if offset is None:
        raise _Refused(f"is a naive datetime, {value.isoformat()}; give it a time zone")
    if offset.seconds % 60 or offset.microseconds:
        # ISO offsets end at the minute; historical zones do not.
        value = value.astimezone(UTC)
    return value.isoformat()


def _decimal(value: Decimal) -> str:
    if not value.is_finite():
        raise _Refused(f"is Decimal({str(value)!r}), which is not a number")
    return str(value)


_FORMS: Final[tuple[tuple[type, Callable[[Any], str]], ...]] = (
    (datetime, _datetime),  # before date, which it derives from
    (date, date.isoformat),
    (time, time.isoformat),
    (UUID, str),
    (Decimal, _decimal),
)


def _segment(key: str | int) -> str:
    if isinstance(key, int):
        return f"[{key}]"
    shown = key if len(key) <= _LONGEST_KEY_SHOWN else f"{key[:_LONGEST_KEY_SHOWN]}..."
    return f".{shown}" if shown.isidentifier() else f"[{json.dumps(shown)}]"


def _refuse_constant(name: str) -> JsonValue:
    raise ValueError(f"{name} is not JSON")


_decoder: Final = json.JSONDecoder(parse_constant=_refuse_constant)
