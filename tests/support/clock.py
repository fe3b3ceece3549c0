"""Time for tests: where the manual clock begins, a bounded wait for what another session or thread does, and a measure
of how long something took that a machine under load does not spoil.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TypeVar

T = TypeVar("T")

NOON = datetime(2026, 3, 2, 12, 0, 0, 250_000, tzinfo=UTC)


def eventually(fact: Callable[[], T], *, timeout: float = 30.0) -> T:
    """What `fact` returns once it is true; fails when that takes longer than `timeout` seconds."""
    until = time.monotonic() + timeout
    while not (found := fact()):
        assert time.monotonic() < until, f"this did not come true within {timeout:g} s"
        time.sleep(0.001)
    return found


_BEAT, _STALL = 0.01, 0.05


@contextmanager
def own_time() -> Iterator[Callable[[], float]]:
    """A clock of the seconds in which this process could do something. A stretch in which not even an idle thread of it
    was woken is the machine's doing, and counts for as little as `_STALL`.
    """
    passed, over = [0.0], threading.Event()

    def count() -> None:
        last = time.monotonic()
        while not over.wait(_BEAT):
            now = time.monotonic()
            passed[0] += min(now - last, _STALL)
            last = now

    thread = threading.Thread(target=count, name="own-time", daemon=True)
    thread.start()
    try:
        yield lambda: passed[0]
    finally:
        over.set()
        thread.join()


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fails where the block takes longer, in this process's own time."""
    with own_time() as clock:
        yield
        taken = clock()
    assert taken < seconds, f"this took {taken:.2f} s"
