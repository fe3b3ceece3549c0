"""A run store that fails on purpose, and remembers what it was asked."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from docket_celery.errors import StoreUnavailable


class Killed(BaseException):
    """The process is gone: nobody catches this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What happens to one call: `error` is raised before the store does it, or after (`applied`: the reply is lost)."""

    error: BaseException
    applied: bool = False


Planned: TypeAlias = Fault | Callable[[], None] | None
"""A fault, something that happens just before the call, or nothing."""


def unreachable() -> Fault:
    return Fault(error=StoreUnavailable("the database is away"))


def lost_reply() -> Fault:
    return Fault(error=StoreUnavailable("the connection broke"), applied=True)


class FaultyStore:
    """Stands before any of the stores. Calls that nothing was planned for pass through."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._planned: defaultdict[str, deque[Planned]] = defaultdict(deque)
        self._always: dict[str, Callable[[], Fault | None]] = {}
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def plan(self, method: str, *faults: Planned) -> None:
        """What happens to the next calls of `method`, in order."""
        self._planned[method].extend(faults)

    def always(self, method: str, fault: Callable[[], Fault | None]) -> None:
        """What happens to every call of `method`."""
        self._always[method] = fault

    def count(self, method: str) -> int:
        return len(self.of(method))

    def of(self, method: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        """The arguments of each call of `method` so far."""
        return [(arguments, keywords) for name, arguments, keywords in self.calls if name == method]

    def __getattr__(self, method: str) -> Any:
        real = getattr(self._inner, method)

        def called(*arguments: Any, **keywords: Any) -> Any:
            self.calls.append((method, arguments, keywords))
            planned = self._planned[method].popleft() if self._planned[method] else None
            if method in self._always:
                planned = self._always[method]()
            if isinstance(planned, Fault):
                if planned.applied:
                    real(*arguments, **keywords)
                raise planned.error
            if planned is not None:
                planned()
            return real(*arguments, **keywords)

        return called
