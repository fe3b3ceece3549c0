"""Interrupts code that runs in the main thread once its time is up or it is void, whatever it does or waits for.

A watchdog thread sends the main thread a private real-time signal, and repeats it, since a bare `except:` or a
`__del__` may eat one. The handler raises only if the interrupted code was called by the attempt: never in our own code
around it, so that there is no instant at which a late signal does harm. Code that holds the interpreter returns first.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from types import FrameType
from typing import Any, Final, TypeVar

from docket_celery.daemons import begin_daemon
from docket_celery.holds import is_held
from docket_celery.runtime.executor import IsVoid, never

T = TypeVar("T")

REPEAT = 0.5
"""Seconds between two signals to code that does not end.

Time for a clean-up, such as cancelling a statement; and more than the 0.1 s at which psycopg looks for signals: each
one that comes earlier makes it wait anew.
"""
LOOK_EVERY = 1.0
"""Seconds between two looks at whether what runs has become void."""

_bare_signal: Final[Any] = import_module("_signal")
"""`signal` without the enums around it, for what is done before every attempt: `pthread_sigmask` makes a member of each
blocked signal, and in older Pythons (3.11.7 is one) `getsignal` raises and catches an error, as our handler is none.
"""


class DeadlineReached(KeyboardInterrupt):
    """Raised inside code whose deadline has come, or which is void. Not an `Exception`, so that broad handlers let it
    pass.
    """


def find_signal() -> signal.Signals | int | None:
    """A real-time signal that nobody in this process uses, or None where there are no such signals."""
    first, last = getattr(signal, "SIGRTMIN", None), getattr(signal, "SIGRTMAX", None)
    if first is None or last is None:
        return None
    free = (number for number in range(last - 1, first, -1) if signal.getsignal(number) is signal.SIG_DFL)
    return next(free, None)


class Interrupter:
    """Runs functions in the main thread under deadlines, one at a time. After a fork it begins anew in the child."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._signal: int | None = None
        self._handler = self._signalled
        self._changed = threading.Condition()
        self._until: float | None = None
        self._is_void: IsVoid = never
        self._watching_until: float | None = None
        self._has_run = False
        self._sent = 0

    def can_run_here(self) -> bool:
        """Whether this is the main thread of a platform with real-time signals, and nothing runs under a deadline."""
        self._own_process()
        if threading.get_ident() != threading.main_thread().ident or self._until is not None:
            return False
        if self._signal is None:
            self._begin()
        else:
            self._listen(self._signal)
        return self._signal is not None

    def run(self, function: Callable[[], T], until: float, is_void: IsVoid = never) -> T:
        """What `function` returns. Raises `DeadlineReached` when it was ended at `until`, or a moment after `is_void`
        said so, and whatever it raises.

        A function that swallows the interruption may return or raise later than `until`: the caller looks at the clock.
        """
        traced = sys.gettrace()
        try:
            self._arm(until, is_void)
            return _interruptible(function)
        finally:
            self._until = None
            if sys.gettrace() is not traced:
                sys.settrace(traced)

    def _begin(self) -> None:
        """Takes a signal and starts the watchdog, in the process and at the time of the first use. Neither without the
        other.
        """
        found = find_signal()
        if found is not None:
            self._listen(found)
            self._signal = found
            if begin_daemon(self._watch, "docket-deadlines") is None:
                signal.signal(found, signal.SIG_DFL)
                self._signal = None

    def _listen(self, number: int) -> None:
        """Lets the signal reach its handler, whatever the node before has done to the signals of this process."""
        if _bare_signal.getsignal(number) is not self._handler:
            signal.signal(number, self._handler)
        _bare_signal.pthread_sigmask(signal.SIG_UNBLOCK, (number,))

    def _arm(self, until: float, is_void: IsVoid) -> None:
        """The watchdog is woken only for a deadline that comes before its next look."""
        self._sent = 0
        self._is_void = is_void
        self._has_run = True
        self._until = until
        watching = self._watching_until
        if watching is None or watching > until:
            with self._changed:
                self._changed.notify()

    def _watch(self) -> None:
        """The watchdog's life: looks at what runs until its time is up, then signals until it is withdrawn."""
        main = threading.main_thread().ident
        assert main is not None
        assert self._signal is not None
        with self._changed:
            while True:
                until, now = self._until, self._monotonic()
                if until is not None and self._is_up(until, now):
                    signal.pthread_kill(main, self._signal)
                    self._changed.wait(REPEAT)
                    continue
                wait = self._until_next_look(until, now)
                self._watching_until = None if wait is None else now + wait
                if self._until == until:
                    self._changed.wait(wait)
                self._watching_until = None

    def _until_next_look(self, until: float | None, now: float) -> float | None:
        """Seconds, or None to sleep until woken. While the process is busy with short attempts the watchdog goes on
        looking, so that none of them has to wake it.
        """
        if until is not None:
            return min(until - now, LOOK_EVERY)
        has_run, self._has_run = self._has_run, False
        return LOOK_EVERY if has_run else None

    def _is_up(self, until: float, now: float) -> bool:
        return now >= until or self._is_void()

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        """Runs in the main thread, between two instructions of whatever it was doing."""
        until = self._until
        if until is None or not self._is_up(until, self._monotonic()) or is_held() or not _is_called_by_us(frame):
            return
        self._sent += 1
        if self._sent > 1:
            _raise_at_next_line(frame)
        raise DeadlineReached

    def _own_process(self) -> None:
        if os.getpid() != self._pid:
            self._reset()


def _interruptible(function: Callable[[], T]) -> T:
    """The line between our code and the attempt: only what runs inside this frame may be interrupted."""
    return function()


def _is_called_by_us(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code is _interruptible.__code__:
            return True
        frame = frame.f_back
    return False


def _raise_at_next_line(frame: FrameType | None) -> None:
    """Against a loop that catches everything: raises once more on the first line of its handler, outside its `try`."""

    def trace(_frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "line" and not is_held():
            raise DeadlineReached
        return trace

    sys.settrace(trace)
    while frame is not None and frame.f_code is not _interruptible.__code__:
        frame.f_trace = trace
        frame = frame.f_back
