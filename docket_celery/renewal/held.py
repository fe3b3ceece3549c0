"""A claim that is being kept, whoever keeps it, and whoever is shown it."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

GRACE: Final = 10.0
"""Seconds beyond the deadline of the vehicle's present work during which its claim is still renewed."""


class Times(Protocol):
    """Two numbers that can be set: `until` and `renewed_at` of a claim."""

    def __getitem__(self, index: int, /) -> float: ...

    def __setitem__(self, index: int, value: float, /) -> None: ...


class Held:
    """One claim being kept. Times are monotonic seconds.

    until       end of what the vehicle is doing now; the vehicle moves it along
    renewed_at  when the latest statement that renewed it was sent
    misses      rounds of renewal in a row that have left it out
    lost        the claim was found gone; never taken back
    """

    __slots__ = ("_times", "lost", "misses", "run_id", "token")

    def __init__(self, run_id: str, token: str, until: float) -> None:
        self.run_id = run_id
        self.token = token
        self.misses = 0
        self.lost = False
        self._times: Times = array("d", (until, float("-inf")))

    @classmethod
    def seen_in(cls, times: Times, run_id: str, token: str) -> Held:
        """A claim whose times somebody keeps in `times`; what is set here is seen there."""
        held = cls(run_id, token, times[0])
        held._times = times
        return held

    @property
    def until(self) -> float:
        return self._times[0]

    @until.setter
    def until(self, seconds: float) -> None:
        self._times[0] = seconds

    @property
    def renewed_at(self) -> float:
        return self._times[1]

    @renewed_at.setter
    def renewed_at(self, seconds: float) -> None:
        self._times[1] = seconds

    def keep_times_in(self, times: Times | None) -> None:
        """Moves its times to where somebody else may see them too; None: back again."""
        kept = array("d", (0.0, 0.0)) if times is None else times
        kept[0], kept[1] = self.until, self.renewed_at
        self._times = kept

    def is_overdue(self, now: float, *, by: float = GRACE) -> bool:
        """Whether the vehicle is so far past its deadline that it must be taken for hung."""
        return now >= self.until + by


class Renewer(Protocol):
    """Whoever keeps claims alive."""

    def hold(self, held: Held) -> None:
        """Begins to renew a claim, until it is overdue."""
        ...

    def drop(self, held: Held) -> None:
        """Stops renewing it."""
        ...


class Witness(Protocol):
    """Whoever is shown what this process holds, so that it can be renewed from elsewhere."""

    def show(self, held: Held) -> None:
        """Lets the claim be seen. May have no room for it."""
        ...

    def hide(self, held: Held) -> None:
        """Lets it be seen no longer."""
        ...


class NoRenewal:
    """For hosts whose attempts all end well within the TTL."""

    def hold(self, held: Held) -> None:
        return None

    def drop(self, held: Held) -> None:
        return None


@contextmanager
def holding(renewer: Renewer, held: Held) -> Iterator[None]:
    """Keeps a claim for the length of a block."""
    renewer.hold(held)
    try:
        yield
    finally:
        renewer.drop(held)
