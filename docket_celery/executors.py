"""Runs the attempts of one superstep in a worker process: alone in the calling thread, or several side by side.

A limit fences the result off: whatever an overdue attempt still does, its result is void and the run goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

from docket_celery.runtime.executor import Attempt, AttemptResult, InlineExecutor, call, timed_out


class ConcurrentExecutor:
    """One attempt runs in the calling thread; several run in daemon threads, at most `width` at a time."""

    def __init__(self, monotonic: Callable[[], float], *, width: int = 16) -> None:
        self._monotonic = monotonic
        self._width = width
        self._inline = InlineExecutor(monotonic)

    def execute(self, attempts: Sequence[Attempt]) -> Sequence[AttemptResult]:
        if len(attempts) <= 1:
            return self._inline.execute(attempts)
        results: list[AttemptResult] = []
        for first in range(0, len(attempts), self._width):
            results += self._wave(attempts[first : first + self._width])
        return results

    def _wave(self, attempts: Sequence[Attempt]) -> list[AttemptResult]:
        """Starts all of them and collects results until each has one or is overdue."""
        done: SimpleQueue[tuple[int, AttemptResult]] = SimpleQueue()
        started = [attempt.started(self._monotonic) for attempt in attempts]
        for index, attempt in enumerate(started):
            threading.Thread(
                target=_report, args=(done, index, attempt), name=f"docket-{attempt.node.id}", daemon=True
            ).start()
        results: dict[int, AttemptResult] = {}
        while len(results) < len(started):
            waiting = [attempt.context.deadline for i, attempt in enumerate(started) if i not in results]
            deadlines = [deadline for deadline in waiting if deadline is not None]
            remaining = max(min(deadlines) - self._monotonic(), 0.0) if deadlines else None
            try:
                index, result = done.get(timeout=remaining)
            except Empty:
                pass
            else:
                results.setdefault(index, result)
            self._fence(started, results)
        return [results[index] for index in range(len(started))]

    def _fence(self, attempts: Sequence[Attempt], results: dict[int, AttemptResult]) -> None:
        """Gives every overdue attempt without a result its timeout; a result that comes later finds it taken."""
        now = self._monotonic()
        for index, attempt in enumerate(attempts):
            deadline = attempt.context.deadline
            if index not in results and deadline is not None and now >= deadline:
                results[index] = timed_out(attempt)


def _report(done: SimpleQueue[tuple[int, AttemptResult]], index: int, attempt: Attempt) -> None:
    done.put((index, call(attempt)))
