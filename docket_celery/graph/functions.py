"""Python callables as nodes: their names, their parameters, and the process-wide registry of `@node`.

Duck-typed towards Celery: an object with a `run` method and a string `name` is a task. Nothing is imported or called.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import BuiltinMethodType, MethodType
from typing import Any, Final, TypeVar, overload

from docket_celery.errors import GraphFormatError, UnknownNode, shown

CONTEXT_PARAMETER: Final = "ctx"
"""The parameter that takes the node context; no field may have this name."""

AnyCallable = TypeVar("AnyCallable", bound=Callable[..., Any])

_registered: dict[str, Callable[..., Any]] = {}


@overload
def node(function: AnyCallable, /) -> AnyCallable: ...
@overload
def node(*, name: str | None = None) -> Callable[[AnyCallable], AnyCallable]: ...
def node(function: Any = None, /, *, name: str | None = None) -> Any:
    """Marks a function as a node that documents may name, in every process that imports its module.

    `@node` registers it as `module:qualname`, `@node(name="...")` under a name that survives moving the function.
    The function itself is returned unchanged.
    """

    def register(marked: Any) -> Any:
        key = _own_name(marked) if name is None else name
        known = _registered.get(key)
        if known is not None and _own_name(known) != _own_name(marked):
            raise GraphFormatError(
                f"node name {key!r} is already taken by {_own_name(known)}; {_own_name(marked)} needs another"
            )
        _registered[key] = marked
        return marked

    return register if function is None else register(function)


def registered(name: str) -> Callable[..., Any]:
    """The function marked with `@node` under this name; `UnknownNode` when there is none. A resolver."""
    try:
        return _registered[name]
    except KeyError:
        raise UnknownNode(f"no function is marked with @node under the name {name!r}") from None


def name_of(function: Callable[..., Any]) -> str:
    """The name a document calls this callable by: its `@node` name, a Celery task's `name`, or `module:qualname`.

    A wrapper around a marked function is a function of its own and does not inherit the mark.
    """
    for name, marked in _registered.items():
        if marked is function:
            return name
    return _own_name(function)


def name_for(function: Callable[..., Any], node_id: str) -> str:
    """`name_of` for a node's call. A local function or lambda shares its name with others made in the same place and
    can be found by none of them; the node's id keeps them apart in the author's own process."""
    name = name_of(function)
    return f"{name}#{node_id}" if _is_local(name) and _registered.get(name) is not function else name


def is_importable(name: str) -> bool:
    """Whether a callable of this name could be found by another process at all."""
    return not name.startswith("__main__:") and not _is_local(name)


def _is_local(name: str) -> bool:
    return "<locals>" in name or "<lambda>" in name


def is_task(function: object) -> bool:
    """Whether this looks like a Celery task."""
    return isinstance(getattr(function, "name", None), str) and callable(getattr(function, "run", None))


def parameters_of(function: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
    """The parameters a call by keyword can fill, `**kwargs` included and `ctx` too; a task's are those of its `run`.

    Raises `GraphFormatError` when they cannot be read, or one can only be filled by position.
    """
    target = getattr(function, "run") if is_task(function) else function  # noqa: B009
    try:
        parameters = _signature(target).parameters.values()
    except (TypeError, ValueError) as error:
        raise GraphFormatError(f"the parameters of {shown(function)} cannot be read: {error}") from error
    for parameter in parameters:
        if parameter.kind is parameter.POSITIONAL_ONLY and parameter.default is parameter.empty:
            raise GraphFormatError(f"{shown(function)}: parameter {parameter.name!r} is positional-only")
    unusable = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)
    return tuple(parameter for parameter in parameters if parameter.kind not in unusable)


def check_parameter(name: object, path: str) -> str:
    """`name` if a document may bind a parameter of that name; else `GraphFormatError`."""
    if not isinstance(name, str) or not name.isidentifier():
        raise GraphFormatError(f"{path}: {name!r} cannot be the name of a parameter")
    if name == CONTEXT_PARAMETER:
        raise GraphFormatError(f"{path}: {name!r} takes the node context and cannot be bound")
    return name


def _signature(target: Callable[..., Any]) -> inspect.Signature:
    if sys.version_info >= (3, 14):
        # Otherwise a name imported for type checking only would make the signature unreadable.
        from annotationlib import Format

        return inspect.signature(target, annotation_format=Format.FORWARDREF)
    return inspect.signature(target)


def _own_name(function: Any) -> str:
    if is_task(function):
        return str(function.name)
    if isinstance(function, MethodType | BuiltinMethodType) and not isinstance(function.__self__, type):
        owner = function.__self__
        if owner is not None and not inspect.ismodule(owner):
            raise GraphFormatError(
                f"{shown(function)} is bound to an object, so no other process could find it by name"
            )
    module, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not callable(function) or not isinstance(module, str) or not isinstance(qualname, str):
        raise GraphFormatError(f"a node needs a function, a Celery task or a name, got {shown(function)}")
    return f"{module}:{qualname}"
