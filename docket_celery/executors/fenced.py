"""Runs attempts in helper threads and fences off those that overrun their deadlines. Safe on every pool.

A helper that is left behind goes on until its code ends, unheard; the books know it. Where threads are greenlets
(a patched interpreter), the helpers are greenlets. No signal is ever used here.
"""

from __future__ import annotations

import contextvars
import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

from docket_celery.executors.coroutines import run_together
from docket_celery.executors.overdue import Helper, Overdue
from docket_celery.runtime.executor import (
    Attempt,
    AttemptResult,
    IsVoid,
    MayBegin,
    Started,
    always,
    call,
    in_time,
    never,
    timed_out,
)

Offload = Callable[[Callable[[], None]], None]
"""Runs a function to its end in a real thread, whatever threads are here."""

WIDTH = 16
"""Helper threads of one superstep that are waited for at the same time."""


class FencedExecutor:
    """Each plain attempt has a thread of its own, at most `width` at a time; `async def` ones share a thread's loop.

    `offload` is given where threads are greenlets: an event loop needs a thread of its own there.
    """

    def __init__(
        self,
        monotonic: Callable[[], float],
        *,
        overdue: Overdue | None = None,
        width: int = WIDTH,
        offload: Offload | None = None,
    ) -> None:
        self.overdue = overdue or Overdue()
        self._monotonic = monotonic
        self._width = width
        self._offload = offload

    def execute(
        self, attempts: Sequence[Attempt], may_begin: MayBegin = always, is_void: IsVoid = never
    ) -> Sequence[AttemptResult]:
        """One result per attempt, in order. An exception raised here came from outside, never from a node. What runs in
        a helper thread cannot be ended, void or not.
        """
        return _Round(attempts, may_begin, self._monotonic, self.overdue, self._offload).carry_out(self._width)


class _Round:
    """One call of `execute`. Only the calling thread touches the results; helpers append to `arrived`."""

    def __init__(
        self,
        attempts: Sequence[Attempt],
        may_begin: MayBegin,
        monotonic: Callable[[], float],
        overdue: Overdue,
        offload: Offload | None,
    ) -> None:
        self._attempts = attempts
        self._may_begin = may_begin
        self._monotonic = monotonic
        self._overdue = overdue
        self._offload = offload
        self._arrived: deque[tuple[int, AttemptResult]] = deque()
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._helpers: dict[int, Helper] = {}
        self._started: dict[int, Started] = {}
        self._results: dict[int, AttemptResult] = {}

    def carry_out(self, width: int) -> list[AttemptResult]:
        """Starts shares as threads become free, until every attempt has a result or is overdue."""
        shares = self._shares(width)
        try:
            while len(self._results) < len(self._attempts):
                while shares and self._busy() < width:
                    self._start(shares.popleft())
                self._wait()
                self._collect()
                self._fence()
        finally:
            for index, helper in self._helpers.items():
                if index not in self._results or self._is_fenced(index):
                    self._overdue.leave(helper)
        return [self._results[index] for index in range(len(self._attempts))]

    def _shares(self, width: int) -> deque[list[int]]:
        """What each helper is to do: the coroutines together (a slice of them, if there are many), the others alone."""
        coroutines = [index for index, attempt in enumerate(self._attempts) if attempt.node.is_async]
        slices = [coroutines[first : first + width] for first in range(0, len(coroutines), width)]
        alone = [[index] for index, attempt in enumerate(self._attempts) if not attempt.node.is_async]
        return deque(slices + alone)

    def _busy(self) -> int:
        return len({id(self._helpers[index]) for index in self._started if index not in self._results})

    def _start(self, share: list[int]) -> None:
        helper = Helper()
        for index in share:
            self._helpers[index] = helper
            self._started[index] = self._attempts[index].started(self._monotonic)
        first = self._attempts[share[0]].node.id
        context = contextvars.copy_context()
        threading.Thread(
            target=context.run, args=(self._help, helper, share), name=f"docket-node-{first}", daemon=True
        ).start()

    def _help(self, helper: Helper, share: list[int]) -> None:
        """The helper's whole life."""
        try:
            attempts = [(index, self._started[index]) for index in share]
            if not attempts[0][1].node.is_async:
                self._call(*attempts[0])
            elif self._offload is None:
                run_together(attempts, self._may_begin, self._report, self._monotonic)
            else:
                # From a real thread, only what is safe between threads: the greenlet wakes the waiting one at the end.
                self._offload(lambda: run_together(attempts, self._may_begin, self._note, self._monotonic))
                self._wake.put(None)
        finally:
            self._overdue.end(helper)

    def _call(self, index: int, attempt: Started) -> None:
        self._report(index, in_time(attempt, call(attempt, self._may_begin, passes=_nothing), self._monotonic))

    def _report(self, index: int, result: AttemptResult) -> None:
        self._note(index, result)
        self._wake.put(None)

    def _note(self, index: int, result: AttemptResult) -> None:
        self._arrived.append((index, result))

    def _wait(self) -> None:
        """Until a helper reports or the next deadline comes."""
        deadlines = [
            attempt.context.deadline
            for index, attempt in self._started.items()
            if index not in self._results and attempt.context.deadline is not None
        ]
        try:
            self._wake.get(timeout=max(min(deadlines) - self._monotonic(), 0.0) if deadlines else None)
        except Empty:
            return

    def _collect(self) -> None:
        while self._arrived:
            index, result = self._arrived.popleft()
            self._results.setdefault(index, result)

    def _fence(self) -> None:
        """Gives every overdue attempt its timeout; a result that comes later finds the place taken."""
        now = self._monotonic()
        for index, attempt in self._started.items():
            deadline = attempt.context.deadline
            if index not in self._results and deadline is not None and now >= deadline:
                self._results[index] = timed_out(attempt)

    def _is_fenced(self, index: int) -> bool:
        return getattr(self._results[index], "timed_out", False)


def _nothing(error: BaseException) -> bool:
    """In a helper thread, everything raised is the node's own."""
    return False
