"""Time and chance for tests: a clock that moves only when told to, and ids that count."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count

NOON = datetime(2026, 3, 2, 12, 0, 0, 250_000, tzinfo=UTC)


@dataclass(slots=True)
class ManualClock:
    """Stands still at `instant` until `advance` is called; wall and monotonic time move together."""

    instant: datetime = NOON
    elapsed: float = 0.0

    def now(self) -> datetime:
        return self.instant

    def monotonic(self) -> float:
        return self.elapsed

    def advance(self, step: timedelta | float) -> datetime:
        """Moves the clock by a timedelta or by seconds, and returns the new instant."""
        delta = step if isinstance(step, timedelta) else timedelta(seconds=step)
        self.instant += delta
        self.elapsed += delta.total_seconds()
        return self.instant


@dataclass(slots=True)
class CountingIds:
    """`run-1`, `run-2`, ... and `token-1`, `token-2`, ..."""

    runs: count[int] = field(default_factory=lambda: count(1))
    tokens: count[int] = field(default_factory=lambda: count(1))

    def run_id(self) -> str:
        return f"run-{next(self.runs)}"

    def token(self) -> str:
        return f"token-{next(self.tokens)}"
