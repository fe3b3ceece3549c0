"""Where this process's scans begin. Never decides what is claimed: a scan that begins too high finds fewer runs.

One forgotten old snapshot keeps the index entries of every past wake and claim, and a scan from the low end would walk
over all of them. So a process remembers the lowest live instants of its last scan and begins there. What appears below
(a wake in the past, a transaction that took long to commit) is found by the next full look: every tick is one, every
scan for a nudge, a refill at least once a second, and any scan that comes back empty soon afterwards.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from msgspec import Struct

_MARGIN: Final = timedelta(milliseconds=200)
"""How long before it commits a statement may have read the clock without being missed."""
_LOWEST: Final = datetime.min.replace(tzinfo=UTC) + _MARGIN
"""The first instant that has a margin before it."""
_FULL_LOOK_INTERVAL: Final = 1.0
_SECOND_LOOK_INTERVAL: Final = 0.05
"""Seconds between full looks; and between those of scans that came back empty."""
_PAUSE: Final = 20
"""Between two full looks passes at least so many times what one takes."""


class Horizon(Struct, frozen=True, kw_only=True):
    """The instants that a scan begins at, on the database's clock; None begins at the lowest."""

    ready_from: datetime | None = None
    claimed_from: datetime | None = None


EVERYTHING: Final = Horizon()


class Outlook(Struct, frozen=True, kw_only=True):
    """What a process remembers between scans: a value, replaced as a whole, so that threads need no lock."""

    horizon: Horizon = EVERYTHING
    looked_at: float | None = None
    took: float = 0.0

    def begin(self, monotonic: float) -> Horizon:
        """Where a scan begins now."""
        return EVERYTHING if self._is_due(monotonic, _FULL_LOOK_INTERVAL) else self.horizon

    def allows_second_look(self, monotonic: float) -> bool:
        """Whether a scan that found nothing above the horizon should look below it."""
        return self._is_due(monotonic, _SECOND_LOOK_INTERVAL)

    def after(self, row: dict[str, Any], begun: Horizon, began: float, ended: float) -> Outlook:
        """The outlook after a scan from `begun` on that gave `row`."""
        horizon = Horizon(
            ready_from=_from(row["ready_from"], begun.ready_from, self.horizon.ready_from),
            claimed_from=_from(row["claimed_from"], begun.claimed_from, self.horizon.claimed_from),
        )
        if begun is not EVERYTHING:
            return Outlook(horizon=horizon, looked_at=self.looked_at, took=self.took)
        return Outlook(horizon=horizon, looked_at=ended, took=ended - began)

    def _is_due(self, monotonic: float, interval: float) -> bool:
        return self.looked_at is None or monotonic - self.looked_at >= max(interval, _PAUSE * self.took)


def _from(seen: datetime | None, begun: datetime | None, known: datetime | None) -> datetime | None:
    """Where to begin after a scan that began at `begun` and has `seen` its first; None: it had no reason to look."""
    if seen is None:
        return known
    start = max(seen, _LOWEST) - _MARGIN
    return start if begun is None else max(start, begun)
