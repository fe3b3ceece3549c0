"""Chooses how the attempts of a superstep are carried out: interruptibly in the main thread, or fenced off beside it.

An attempt that runs alone in the main thread is interrupted at its deadline, or when it is void. Siblings, and attempts
anywhere else, run in helper threads. Nothing is decided at start-up: the same executor serves a forked child, a thread
and a script.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from docket_celery.errors import is_of
from docket_celery.executors.fenced import FencedExecutor, Offload
from docket_celery.executors.forks import Passes, call_once
from docket_celery.executors.interruption import DeadlineReached, Interrupter
from docket_celery.executors.overdue import Overdue
from docket_celery.runtime.executor import (
    Attempt,
    AttemptResult,
    IsVoid,
    MayBegin,
    NotBegun,
    always,
    in_time,
    is_keyboard_interrupt,
    is_loop_running,
    never,
    timed_out,
)


class NodeExecutor:
    """Implements `Executor` for real processes.

    interruptible  whether signals may be used at all: not where threads are greenlets
    is_farewell    whether an exception raised inside a node in the main thread comes from outside and ends the process
    offload        see `FencedExecutor`
    """

    def __init__(
        self,
        monotonic: Callable[[], float],
        *,
        interruptible: bool = True,
        is_farewell: Passes = is_keyboard_interrupt,
        offload: Offload | None = None,
    ) -> None:
        self.overdue = Overdue()
        self._monotonic = monotonic
        self._fenced = FencedExecutor(monotonic, overdue=self.overdue, offload=offload, is_farewell=is_farewell)
        self._interrupter = Interrupter(monotonic) if interruptible else None
        self._is_farewell = is_farewell

    def execute(
        self, attempts: Sequence[Attempt], may_begin: MayBegin = always, is_void: IsVoid = never
    ) -> Sequence[AttemptResult]:
        """One result per attempt, in order. What is raised here came from outside and ends the process."""
        if not attempts:
            return []
        interrupter = self._interrupter
        needs_other_thread = len(attempts) > 1 or (attempts[0].node.is_async and is_loop_running())
        if not needs_other_thread and interrupter is not None and interrupter.can_run_here():
            return [self._alone(attempts[0], may_begin, is_void, interrupter)]
        return self._fenced.execute(attempts, may_begin, is_void)

    def _alone(self, attempt: Attempt, may_begin: MayBegin, is_void: IsVoid, interrupter: Interrupter) -> AttemptResult:
        started = attempt.started(self._monotonic)
        deadline = started.deadline
        if deadline is None:
            return call_once(started, may_begin, passes=self._is_farewell)
        try:
            result = interrupter.run(lambda: call_once(started, may_begin, passes=self._passes), deadline, is_void)
        except DeadlineReached:
            return NotBegun() if is_void() else timed_out(started)
        except Exception as error:
            # Only a farewell comes here: clean-up code of the node put this in its place.
            raise SystemExit(1) from error
        return in_time(started, result, self._monotonic)

    def _passes(self, error: BaseException) -> bool:
        return is_of(error, DeadlineReached) or self._is_farewell(error)
