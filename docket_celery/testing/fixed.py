"""Time and chance in a test's hands: a clock that stands still, ids that count, jitter that is always the same."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta


class ManualClock:
    """A clock that moves only when told to."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._start = start
        self._elapsed = timedelta(0)

    def now(self) -> datetime:
        return self._start + self._elapsed

    def monotonic(self) -> float:
        return self._elapsed.total_seconds()

    def advance(self, by: timedelta | float) -> datetime:
        """Moves time on, by a timedelta or by seconds, and returns the new instant."""
        self._elapsed += by if isinstance(by, timedelta) else timedelta(seconds=by)
        return self.now()


class SequentialIds:
    """Ids that count: `run-1`, `token-1`, ..."""

    def __init__(self) -> None:
        self._runs = itertools.count(1)
        self._tokens = itertools.count(1)

    def run_id(self) -> str:
        return f"run-{next(self._runs)}"

    def token(self) -> str:
        return f"token-{next(self._tokens)}"


@dataclass(frozen=True, slots=True)
class FixedJitter:
    """Always draws the same fraction."""

    value: float = 0.0

    def fraction(self) -> float:
        return self.value
