"""How attempts are carried out: a Protocol, and the plain implementation that calls one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

from docket_celery.program import RuntimeNode
from docket_celery.runtime.node import NodeContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One execution to carry out: the node, arguments that belong to it alone, its context, its limit in seconds."""

    node: RuntimeNode
    arguments: Mapping[str, Any]
    context: NodeContext
    timeout: float | None = None

    def started(self, monotonic: Callable[[], float]) -> Attempt:
        """This attempt with its deadline set from now: waiting for a free thread is not the node's time."""
        deadline = None if self.timeout is None else monotonic() + self.timeout
        return replace(self, context=replace(self.context, deadline=deadline, monotonic=monotonic))


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """The node returned `value`, whatever it is."""

    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """The node raised, or overran its deadline (`timed_out`), in which case whatever it did since is void."""

    error: BaseException
    timed_out: bool = False


AttemptResult: TypeAlias = Returned | Raised


class Executor(Protocol):
    """Runs the attempts of one superstep, together or one by one."""

    def execute(self, attempts: Sequence[Attempt]) -> Sequence[AttemptResult]:
        """One result per attempt, in the order given. Never raises for what a node did."""
        ...


class InlineExecutor:
    """Calls the nodes one after the other in this thread. `async def` nodes get an event loop each.

    Its limits are judged afterwards: code is never interrupted, but a late result is a timeout.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic

    def execute(self, attempts: Sequence[Attempt]) -> Sequence[AttemptResult]:
        return [self._run(attempt.started(self._monotonic)) for attempt in attempts]

    def _run(self, attempt: Attempt) -> AttemptResult:
        result = call(attempt)
        deadline = attempt.context.deadline
        return timed_out(attempt) if deadline is not None and self._monotonic() >= deadline else result


def call(attempt: Attempt) -> AttemptResult:
    """Calls one node in this thread and keeps whatever it raises as a result; only `KeyboardInterrupt` passes."""
    node = attempt.node
    assert node.call is not None, f"node {node.id!r} was compiled without its code"
    arguments = {**attempt.arguments, "ctx": attempt.context} if node.wants_context else attempt.arguments
    try:
        value = node.call(**arguments)
        if node.is_async:
            value = asyncio.run(value)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return Raised(error=error)
    return Returned(value=value)


def timed_out(attempt: Attempt) -> Raised:
    """The result of an attempt that overran its deadline."""
    context = attempt.context
    message = f"node {context.node!r}: attempt {context.attempt} did not finish within {attempt.timeout:g} s"
    return Raised(error=TimeoutError(message), timed_out=True)
