"""How attempts are carried out: a Protocol, and the plain implementation that calls one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, Protocol, TypeAlias

from msgspec import Struct

from docket_celery.errors import is_of
from docket_celery.program import RuntimeNode
from docket_celery.runtime.node import NodeContext

MayBegin: TypeAlias = Callable[[float | None], bool]
"""Asked with an attempt's limit, at the last instant before its node is called and in the thread that calls it. When
it says no, the attempt has not happened.
"""
IsVoid: TypeAlias = Callable[[], bool]
"""Asked while attempts run, in any thread: whether nothing that they may still return can be committed. An executor
that can end them early then does so, and calls them not begun.
"""


def always(timeout: float | None) -> bool:
    """Lets every attempt begin."""
    return True


def never() -> bool:
    """No attempt becomes void while it runs."""
    return False


class ContextMaker(Protocol):
    """A node's context but for its time."""

    def __call__(self, *, deadline: float | None, monotonic: Callable[[], float]) -> NodeContext: ...


class Attempt(Struct, frozen=True, kw_only=True):
    """One execution to carry out: the node, arguments that belong to it alone, its context, its limit in seconds."""

    node: RuntimeNode
    arguments: Mapping[str, Any]
    context: ContextMaker
    timeout: float | None = None

    def started(self, monotonic: Callable[[], float]) -> Started:
        """This attempt with its deadline set from now: waiting for a free thread is not the node's time."""
        deadline = None if self.timeout is None else monotonic() + self.timeout
        context = partial(self.context, deadline=deadline, monotonic=monotonic)
        return Started(
            node=self.node, arguments=self.arguments, context=context, timeout=self.timeout, deadline=deadline
        )


class Started(Struct, frozen=True, kw_only=True):
    """An attempt whose time runs, until `deadline` in monotonic seconds. `context` makes its context on demand."""

    node: RuntimeNode
    arguments: Mapping[str, Any]
    context: Callable[[], NodeContext]
    timeout: float | None
    deadline: float | None


class Returned(Struct, frozen=True, kw_only=True):
    """The node returned `value`, whatever it is."""

    value: Any


class Raised(Struct, frozen=True, kw_only=True):
    """The node raised, or overran its deadline (`timed_out`), in which case whatever it did since is void."""

    error: BaseException
    timed_out: bool = False


class NotBegun(Struct, frozen=True, kw_only=True):
    """The node was not called, or was ended because its attempt was void; the same attempt is still due."""


AttemptResult: TypeAlias = Returned | Raised | NotBegun


class Executor(Protocol):
    """Runs the attempts of one superstep, together or one by one."""

    def execute(
        self, attempts: Sequence[Attempt], may_begin: MayBegin = always, is_void: IsVoid = never
    ) -> Sequence[AttemptResult]:
        """One result per attempt, in the order given. Never raises for what a node did."""
        ...


class InlineExecutor:
    """Calls the nodes one after the other in this thread. `async def` nodes get an event loop each.

    Its limits are judged afterwards: code is never interrupted, but a late result is a timeout.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic

    def execute(
        self, attempts: Sequence[Attempt], may_begin: MayBegin = always, is_void: IsVoid = never
    ) -> Sequence[AttemptResult]:
        return [self._run(attempt.started(self._monotonic), may_begin) for attempt in attempts]

    def _run(self, attempt: Started, may_begin: MayBegin) -> AttemptResult:
        return in_time(attempt, call(attempt, may_begin), self._monotonic)


def is_keyboard_interrupt(error: BaseException) -> bool:
    """What passes through a node in a process of the user's own: somebody at the keyboard wants it to end."""
    return is_of(error, KeyboardInterrupt)


def call(
    attempt: Started, may_begin: MayBegin, *, passes: Callable[[BaseException], bool] = is_keyboard_interrupt
) -> AttemptResult:
    """Calls one node in this thread and keeps whatever it raises as a result, but for what `passes` lets through."""
    if not may_begin(attempt.timeout):
        return NotBegun()
    assert attempt.node.call is not None, f"node {attempt.node.id!r} was compiled without its code"
    try:
        # In a context of its own: what comes next in this thread may be another tenant's.
        value = copy_context().run(_called, attempt, attempt.node.call)
    except BaseException as error:
        if passes(error):
            raise
        return Raised(error=error)
    return Returned(value=value)


def _called(attempt: Started, function: Callable[..., Any]) -> Any:
    value = function(**arguments_of(attempt))
    return _completed(value) if attempt.node.is_async else value


def is_loop_running() -> bool:
    """Whether this thread is inside an event loop, as in a notebook: no second one can run in it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _completed(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """What the coroutine returns, from a loop of its own in this thread or, inside one that runs, in another."""
    if not is_loop_running():
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(copy_context().run, asyncio.run, coroutine).result()


def arguments_of(attempt: Started) -> Mapping[str, Any]:
    """The keyword arguments of the call: the bound ones, and the context where the node declares it."""
    return {**attempt.arguments, "ctx": attempt.context()} if attempt.node.wants_context else attempt.arguments


def in_time(attempt: Started, result: AttemptResult, monotonic: Callable[[], float]) -> AttemptResult:
    """The result, or a timeout in its place when the deadline has passed by now: what a late node did is void."""
    late = attempt.deadline is not None and monotonic() >= attempt.deadline
    return timed_out(attempt) if late and not isinstance(result, NotBegun) else result


def is_timeout(result: AttemptResult) -> bool:
    """Whether this is what `timed_out` gives."""
    return isinstance(result, Raised) and result.timed_out


def timed_out(attempt: Started) -> Raised:
    """The result of an attempt that overran its deadline."""
    context = attempt.context()
    message = f"node {context.node!r}: attempt {context.attempt} did not finish within {attempt.timeout:g} s"
    return Raised(error=TimeoutError(message), timed_out=True)
