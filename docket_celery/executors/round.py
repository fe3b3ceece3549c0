"""Who does what in one superstep, and until when. Starts nothing and waits for nothing.

The attempts stand in one queue from which each helper takes the next when it is free. The first helper begins alone;
only if it does not get through the queue at once are others to join it: short siblings cost one helper, long ones run
side by side. Whoever shares a round between threads does so under a lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from docket_celery.executors.overdue import Helper
from docket_celery.runtime.executor import Attempt, AttemptResult, Raised, Started, is_timeout, timed_out

Share: TypeAlias = list[int]
"""Indices of attempts that one helper carries out together."""
Begun: TypeAlias = tuple[int, Started]

GRACE: Final = 0.0005
"""Seconds that the first helper has for the whole queue: more than a few short nodes take, and less than is noticed."""


class Round:
    """At most `width` helpers that are waited for, and one result per attempt, in time or in its place a timeout."""

    def __init__(
        self, attempts: Sequence[Attempt], monotonic: Callable[[], float], *, width: int, grace: float = GRACE
    ) -> None:
        self._attempts = attempts
        self._monotonic = monotonic
        self._width = width
        self._allowed = 1
        self._alone_until = monotonic() + grace
        self._due = _shares(attempts, width)
        self._helpers: set[Helper] = set()
        """Those who are waited for."""
        self._running: dict[int, tuple[Started, Helper]] = {}
        self._unheard: set[Helper] = set()
        """Those whose code goes on after its attempt has timed out."""
        self._results: dict[int, AttemptResult] = {}

    @property
    def is_over(self) -> bool:
        """Whether every attempt has its result."""
        return len(self._results) == len(self._attempts)

    @property
    def results(self) -> list[AttemptResult]:
        """Of a round that is over, in the order of the attempts."""
        return [self._results[index] for index in range(len(self._attempts))]

    @property
    def needs_attention(self) -> bool:
        """Whether `advance` has something to do whatever the time: the round is over, or there is room for helpers."""
        return self.is_over or self._wanted() > 0

    def advance(self) -> list[Helper]:
        """Gives every overdue attempt its timeout, and returns the helpers that are to begin now."""
        now = self._monotonic()
        for index, (attempt, _) in list(self._running.items()):
            if attempt.deadline is not None and now >= attempt.deadline:
                self._settle(index, timed_out(attempt), goes_on=True)
        if now >= self._alone_until:
            self._allowed = self._width
        helpers = [Helper() for _ in range(self._wanted())]
        self._helpers.update(helpers)
        return helpers

    def next_look(self) -> float | None:
        """The instant by which `advance` may have something to do. An attempt that is due may begin at any time."""
        now = self._monotonic()
        times = [attempt.deadline for attempt, _ in self._running.values() if attempt.deadline is not None]
        limits = [self._attempts[index].timeout for share in self._due for index in share]
        times += [now + limit for limit in limits if limit is not None]
        if self._allowed < self._width and self._due:
            times.append(self._alone_until)
        return min(times, default=None)

    def dismiss(self, helper: Helper) -> bool:
        """Notes that a helper cannot come; whether nobody else helps."""
        self._helpers.discard(helper)
        return not self._helpers

    def take(self, helper: Helper) -> list[Begun]:
        """The helper's next share, whose time runs from now; empty when the helper is not needed any more. What it took
        before has ended.
        """
        self._unheard.discard(helper)
        if not self._due or (helper not in self._helpers and len(self._helpers) >= self._allowed):
            self._helpers.discard(helper)
            return []
        self._helpers.add(helper)
        begun = [(index, self._attempts[index].started(self._monotonic)) for index in self._due.popleft()]
        for index, attempt in begun:
            self._running[index] = attempt, helper
        return begun

    def report(self, index: int, result: AttemptResult) -> None:
        """Notes what came of an attempt; void after its timeout. A coroutine reports its own: its code may go on."""
        if index in self._running:
            self._settle(index, result, goes_on=self._attempts[index].node.is_async and is_timeout(result))

    def has_failed(self, share: list[Begun]) -> bool:
        """Whether an attempt of those that a helper began is known to have failed, or to be too late."""
        return any(isinstance(self._results.get(index), Raised) for index, _ in share)

    def close(self) -> set[Helper]:
        """Lets nothing more begin, and returns the helpers whose code goes on although nobody waits for it."""
        self._due.clear()
        return self._unheard | self._occupied()

    def _settle(self, index: int, result: AttemptResult, *, goes_on: bool) -> None:
        """A helper that is done with one plain attempt comes for the next by itself; a loop may be slow to close."""
        attempt, helper = self._running.pop(index)
        self._results[index] = result
        if goes_on:
            self._unheard.add(helper)
        if (goes_on or attempt.node.is_async) and helper not in self._occupied():
            self._helpers.discard(helper)

    def _wanted(self) -> int:
        """How many helpers are missing: those who run nothing at this instant come for the next share themselves."""
        room = self._allowed - len(self._helpers)
        if room <= 0 or not self._due:
            return 0
        coming = len(self._helpers - self._occupied())
        return max(min(len(self._due) - coming, room), 0)

    def _occupied(self) -> set[Helper]:
        return {helper for _, helper in self._running.values()}


def _shares(attempts: Sequence[Attempt], width: int) -> deque[Share]:
    """The coroutines together (a slice of them, if there are many), since they have one loop; the others alone."""
    coroutines = [index for index, attempt in enumerate(attempts) if attempt.node.is_async]
    slices = [coroutines[first : first + width] for first in range(0, len(coroutines), width)]
    alone = [[index] for index, attempt in enumerate(attempts) if not attempt.node.is_async]
    return deque(slices + alone)
