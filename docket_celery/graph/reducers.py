"""How the writes of one superstep and the committed value of a field become its next committed value.

Pure folds over JSON values in the order the writes are given, which is ascending node id. Nothing is mutated; results
may share parts with what was given.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from docket_celery.errors import ValueRefused

Fold = Callable[[Any, bool, Sequence[Any]], Any]


def _as_given(write: Any) -> Any:
    return write


def _anything(value: Any) -> str | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reducer:
    """One way to reduce.

    reduce           (committed, has_value, writes) -> next value; `committed` is ignored unless `has_value`, and there
                     is at least one write
    problem          why a write cannot be reduced, or None; judged when the node returns it
    problem_of_value why a value cannot be the committed one (a default, say), or None
    normalise        a write in the one form `reduce` folds; applying it twice changes nothing
    zero             makes the value such a field has before anything was written; None: it has none
    appends          a write only adds items at the end, so that storage may write these alone
    replaces         a write is the next value, whatever the committed one was
    """

    name: str
    reduce: Fold
    problem: Callable[[Any], str | None] = _anything
    problem_of_value: Callable[[Any], str | None] = _anything
    normalise: Callable[[Any], Any] = _as_given
    zero: Callable[[], Any] | None = None
    appends: bool = False
    replaces: bool = False

    @property
    def needs_committed(self) -> bool:
        """Whether a write cannot be stored without knowing the committed value."""
        return not (self.appends or self.replaces)

    @property
    def has_zero(self) -> bool:
        """Whether a field with this reducer has a value from the start."""
        return self.zero is not None


def _last_value(committed: Any, has_value: bool, writes: Sequence[Any]) -> Any:
    """The last write: of two nodes in one superstep, that of the greatest node id."""
    return writes[-1]


def _first_value(committed: Any, has_value: bool, writes: Sequence[Any]) -> Any:
    """What is there stays; otherwise the first write, that of the smallest node id."""
    return committed if has_value else writes[0]


def _append(committed: Any, has_value: bool, writes: Sequence[Any]) -> Any:
    """Items at the end, in order. A list adds each of its items, anything else is one item."""
    result = list(committed) if has_value else []
    for write in writes:
        result.extend(_items(write))
    return result


def _merge(committed: Any, has_value: bool, writes: Sequence[Any]) -> Any:
    """Shallow: a later write's key replaces the whole value of an earlier one. Known keys keep their place."""
    result = dict(committed) if has_value else {}
    for write in writes:
        result.update(write)
    return result


def _sum(committed: Any, has_value: bool, writes: Sequence[Any]) -> Any:
    """Whole numbers exactly, whatever their size; one float makes the sum a float, added in order."""
    result = committed if has_value else 0
    try:
        for write in writes:
            result = result + write
    except OverflowError:
        raise ValueRefused("$", "the sum mixes a float with an integer too large to be one") from None
    if isinstance(result, float) and result in (float("inf"), float("-inf")):
        raise ValueRefused("$", "the sum leaves what a float can hold")
    return result


def _union(committed: Any, has_value: bool, writes: Sequence[Any]) -> Any:
    """Adds what is not there yet, in order of first occurrence. Equal means equal as JSON.

    1, 1.0 and true are three different items; two objects are one item whatever the order of their keys.
    """
    result = list(committed) if has_value else []
    seen = {_identity(item) for item in result}
    for write in writes:
        for item in _items(write):
            key = _identity(item)
            if key not in seen:
                seen.add(key)
                result.append(item)
    return result


def _items(write: Any) -> list[Any]:
    return write if isinstance(write, list) else [write]


def _identity(item: Any) -> object:
    if isinstance(item, dict | list):
        return type(item), json.dumps(item, sort_keys=True, separators=(",", ":"))
    return type(item), item


def _not_a_number(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"must be a number, got {_kind(value)}"
    return None


def _not_an_object(value: Any) -> str | None:
    return None if isinstance(value, dict) else f"must be an object, got {_kind(value)}"


def _not_a_list(value: Any) -> str | None:
    return None if isinstance(value, list) else f"must be a list, got {_kind(value)}"


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__


REDUCERS: Final = MappingProxyType(
    {
        reducer.name: reducer
        for reducer in (
            Reducer(
                name="append", reduce=_append, problem_of_value=_not_a_list, normalise=_items, zero=list, appends=True
            ),
            Reducer(name="first_value", reduce=_first_value),
            Reducer(name="last_value", reduce=_last_value, replaces=True),
            Reducer(name="merge", reduce=_merge, problem=_not_an_object, problem_of_value=_not_an_object, zero=dict),
            Reducer(name="sum", reduce=_sum, problem=_not_a_number, problem_of_value=_not_a_number, zero=int),
            Reducer(name="union", reduce=_union, problem_of_value=_not_a_list, normalise=_items, zero=list),
        )
    }
)
"""Every reducer a field may name."""
