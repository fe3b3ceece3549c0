"""Where time and chance enter.

Nothing else in the package reads a clock, makes an id or draws a random number: these come in as arguments, so that a
test can pin them. In production the instants that decide anything are PostgreSQL's; the system clock here only times
what happens inside one process.
"""

from __future__ import annotations

import os
import random
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from docket_celery.errors import InvalidInput, shown


def utc_instant(instant: object, what: str) -> datetime:
    """`instant` in UTC. `InvalidInput`, naming `what`, for anything that is not one moment that UTC can hold.

    Only instants are stored: a naive time means another moment in every process, so it is refused.
    """
    if not isinstance(instant, datetime) or instant.utcoffset() is None:
        raise InvalidInput(f"{what} must be an aware datetime, got {shown(instant)}")
    try:
        return instant.astimezone(UTC)
    except OverflowError as error:
        raise InvalidInput(f"{what} must lie within the years 1 to 9999 in UTC, got {shown(instant)}") from error


class Clock(Protocol):
    """Wall and monotonic time of this process."""

    def now(self) -> datetime:
        """The current instant, aware, in UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds that never step back; only differences mean anything."""
        ...


class IdSource(Protocol):
    """Makes identifiers."""

    def run_id(self) -> str:
        """A new run id: unique, ASCII, and sorting roughly by time of creation."""
        ...

    def token(self) -> str:
        """A new unguessable token, for claims and commit ids."""
        ...


class Jitter(Protocol):
    """Draws the random share of a delay."""

    def fraction(self) -> float:
        """A number in [0, 1)."""
        ...


@dataclass(frozen=True, slots=True)
class SystemClock:
    """The machine's clocks."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()


@dataclass(frozen=True, slots=True)
class RandomIds:
    """UUIDv7-shaped run ids and 128-bit random tokens. Safe after a fork: the operating system is asked each time."""

    def run_id(self) -> str:
        milliseconds = time.time_ns() // 1_000_000
        tail = int.from_bytes(os.urandom(10), "big")
        value = (milliseconds & (1 << 48) - 1) << 80 | tail
        value = value & ~(0xF << 76) | 0x7 << 76
        value = value & ~(0x3 << 62) | 0x2 << 62
        digits = f"{value:032x}"
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))

    def token(self) -> str:
        return os.urandom(16).hex()


@dataclass(frozen=True, slots=True)
class RandomJitter:
    """Uniform, from the operating system's entropy (forked children must not draw the same delays)."""

    def fraction(self) -> float:
        return random.SystemRandom().random()
