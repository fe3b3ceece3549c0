"""Runs attempts in helper threads and fences off those that overrun their deadlines. Safe on every pool.

A helper that is left behind goes on until its code ends, unheard; the books know it. Where threads are greenlets
(a patched interpreter), the helpers are greenlets. No signal is ever used here.
"""

from __future__ import annotations

import contextvars
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue

from docket_celery.executors.coroutines import run_together
from docket_celery.executors.forks import Passes, call_once
from docket_celery.executors.overdue import Helper, Overdue
from docket_celery.executors.round import GRACE, Begun, Round
from docket_celery.executors.threads import KeptThreads
from docket_celery.runtime.executor import (
    Attempt,
    AttemptResult,
    IsVoid,
    MayBegin,
    always,
    in_time,
    is_keyboard_interrupt,
    never,
)

Offload = Callable[[Callable[[], None]], None]
"""Runs a function to its end in a real thread, whatever threads are here."""

WIDTH = 16
"""Helper threads of one superstep that are waited for at the same time."""


class FencedExecutor:
    """Plain attempts run in helper threads, one at a time in each; `async def` ones share a thread's loop.

    How many helpers a superstep has, at most `width`, is decided in `round`; `grace` is what it gives the first one.
    `offload` is given where threads are greenlets: an event loop needs a thread of its own there. `is_farewell` is that
    of `NodeExecutor`, for what has to run in the calling thread.
    """

    def __init__(
        self,
        monotonic: Callable[[], float],
        *,
        overdue: Overdue | None = None,
        width: int = WIDTH,
        grace: float = GRACE,
        offload: Offload | None = None,
        is_farewell: Passes = is_keyboard_interrupt,
    ) -> None:
        self.overdue = overdue or Overdue()
        self._monotonic = monotonic
        self._width = width
        self._grace = grace
        self._offload = offload
        self._is_farewell = is_farewell
        self._threads = KeptThreads(monotonic)

    def execute(
        self, attempts: Sequence[Attempt], may_begin: MayBegin = always, is_void: IsVoid = never
    ) -> Sequence[AttemptResult]:
        """One result per attempt, in order. An exception raised here came from outside, never from a node. What runs in
        a helper thread cannot be ended, void or not.
        """
        shared = Round(attempts, self._monotonic, width=self._width, grace=self._grace)
        return _Crew(
            shared, may_begin, self._monotonic, self.overdue, self._threads, self._offload, self._is_farewell
        ).carry_out()


class _Crew:
    """The calling thread and its helpers during one call of `execute`; they share the round under a lock."""

    def __init__(
        self,
        shared: Round,
        may_begin: MayBegin,
        monotonic: Callable[[], float],
        overdue: Overdue,
        threads: KeptThreads,
        offload: Offload | None,
        is_farewell: Passes,
    ) -> None:
        self._round = shared
        self._may_begin = may_begin
        self._monotonic = monotonic
        self._overdue = overdue
        self._threads = threads
        self._offload = offload
        self._is_farewell = is_farewell
        self._context = contextvars.copy_context()
        self._lock = threading.Lock()
        self._arrived: deque[tuple[int, AttemptResult]] = deque()
        self._wake: SimpleQueue[None] = SimpleQueue()

    def carry_out(self) -> list[AttemptResult]:
        """Sends helpers while there is something to begin, and waits until every attempt has a result or is overdue."""
        try:
            while True:
                self._collect()
                with self._lock:
                    helpers, look = self._round.advance(), self._round.next_look()
                if self._round.is_over:
                    return self._round.results
                for helper in helpers:
                    if not self._threads.run(partial(self._help, helper, _nothing)):
                        self._do_without(helper)
                self._wait(look)
        finally:
            with self._lock:
                left = self._round.close()
            for helper in left:
                self._overdue.leave(helper)

    def _do_without(self, helper: Helper) -> None:
        """No thread can be had for this helper. If there is no other one either, its work is done here, in the calling
        thread: what overruns its deadline then is judged when it ends, and what ends the process is raised.
        """
        with self._lock:
            is_last = self._round.dismiss(helper)
        if is_last:
            self._help(helper, self._is_farewell)

    def _wait(self, until: float | None) -> None:
        """Until the round needs attention, at `until` at the latest."""
        try:
            self._wake.get(timeout=None if until is None else max(until - self._monotonic(), 0.0))
        except Empty:
            return

    def _help(self, helper: Helper, passes: Passes) -> bool:
        """All that a helper does, in its thread. No attempt sees what another one sets in its context. Whether one of
        them failed: what made it fail may be in the locals of the thread.
        """
        failed = False
        try:
            while share := self._take(helper):
                self._context.copy().run(self._begin, share, passes)
                failed = failed or self._has_failed(share)
            return failed
        finally:
            self._overdue.end(helper)

    def _take(self, helper: Helper) -> list[Begun]:
        with self._lock:
            return self._round.take(helper)

    def _has_failed(self, share: list[Begun]) -> bool:
        with self._lock:
            return self._round.has_failed(share)

    def _begin(self, share: list[Begun], passes: Passes) -> None:
        index, attempt = share[0]
        if not attempt.node.is_async:
            result = call_once(attempt, self._may_begin, passes=passes)
            self._report(index, in_time(attempt, result, self._monotonic))
        elif self._offload is None:
            run_together(share, self._may_begin, self._report, self._monotonic, passes=passes)
        else:
            # From a real thread, only what is safe between threads: greenlets look at what has arrived.
            self._offload(lambda: run_together(share, self._may_begin, self._note, self._monotonic, passes=_nothing))
            self._collect()

    def _note(self, index: int, result: AttemptResult) -> None:
        self._arrived.append((index, result))

    def _collect(self) -> None:
        while self._arrived:
            self._report(*self._arrived.popleft())

    def _report(self, index: int, result: AttemptResult) -> None:
        with self._lock:
            self._round.report(index, result)
            needs_attention = self._round.needs_attention
        if needs_attention:
            self._wake.put(None)


def _nothing(error: BaseException) -> bool:
    """In a helper thread, everything raised is the node's own."""
    return False
