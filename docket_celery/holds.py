"""Stretches of our own code that a node's deadline must not cut short: a statement, a message being sent.

A node may call docket itself, and its deadline may come while it does. Whoever interrupts code asks `is_held()` first,
in the thread that is to be interrupted, and comes back later. Knows nothing of how code is interrupted.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager


class _Holds(threading.local):
    count = 0


_holds = _Holds()


class _Held:
    """One for all threads, and no generator: it stands around every statement."""

    def __enter__(self) -> None:
        _holds.count += 1

    def __exit__(self, *_error: object) -> None:
        _holds.count -= 1


_held = _Held()


def held() -> AbstractContextManager[None]:
    """Puts off the interruption of the calling thread until the block is left. May be nested."""
    return _held


def is_held() -> bool:
    """Whether the calling thread is inside such a block."""
    return _holds.count > 0
