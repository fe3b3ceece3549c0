"""Stretches of our own code that a node's deadline must not cut short: a statement, a message being sent.

A node may call docket itself, and its deadline may come while it does. Whoever interrupts code asks `is_held()` first,
in the thread that is to be interrupted, and comes back later. Knows nothing of how code is interrupted.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Holds(threading.local):
    count = 0


_holds = _Holds()


@contextmanager
def held() -> Iterator[None]:
    """Puts off the interruption of the calling thread until the block is left. May be nested."""
    _holds.count += 1
    try:
        yield
    finally:
        _holds.count -= 1


def is_held() -> bool:
    """Whether the calling thread is inside such a block."""
    return _holds.count > 0
