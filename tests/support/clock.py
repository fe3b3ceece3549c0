"""Time for tests: where the manual clock begins, and a bounded wait for what another session or thread does."""

from __future__ import annotations

import time
from collections.abc import Callable
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
