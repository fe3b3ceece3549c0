"""Retention: removing what has been over for long enough. It never touches a run that has not ended."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from docket_celery.errors import InvalidInput
from docket_celery.storage.contracts.values import Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunePolicy:
    """What may go, and how much of it at once. An age of None keeps everything of its kind.

    runs    age of a run, from its end
    events  age of an event of an ended run, from the event itself
    graphs  age of a graph version, from its latest publication

    One pass removes at most `batch` runs, thins out the events of at most `batch` others, and removes at most `batch`
    graph versions, each in a transaction of its own; `event_batch` bounds the events of each, except that a run whose
    own events are more goes alone and whole. `dry_run` only counts, and counts everything. `now` pins the store's
    clock, for tests.
    """

    runs: timedelta | None
    events: timedelta | None
    graphs: timedelta | None = None
    batch: int = 200
    event_batch: int = 10_000
    dry_run: bool = False
    now: datetime | None = None

    def __post_init__(self) -> None:
        for name, age in (("runs", self.runs), ("events", self.events), ("graphs", self.graphs)):
            if age is not None and age < timedelta(0):
                raise InvalidInput(f"the retention of {name} must not be negative, got {age}")
        for name, size in (("batch", self.batch), ("event_batch", self.event_batch)):
            if size < 1:
                raise InvalidInput(f"{name} must be at least 1, got {size}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneCount:
    """What a pass removed, or with `dry_run` what would go. `events` includes those of the removed runs."""

    runs: int = 0
    events: int = 0
    graphs: int = 0
    more: bool = False
    """Whether a batch was full, so that another pass has work."""
    busy: bool = False
    """Whether another pass was under way, so that this one left its share to it."""

    def __add__(self, other: PruneCount) -> PruneCount:
        """The sum of two passes; whether there is more is what the later one found."""
        return PruneCount(
            runs=self.runs + other.runs,
            events=self.events + other.events,
            graphs=self.graphs + other.graphs,
            more=other.more,
            busy=other.busy,
        )


class Retention(Protocol):
    """Removes what is old, in bounded steps. Passes exclude each other; nobody else ever waits for one."""

    def prune(self, scope: Scope, policy: PrunePolicy) -> PruneCount:
        """One pass over what `scope` sees. Ages are judged on the store's clock; exactly at an age is not yet past it.

        Runs: terminal ones whose end is older than `policy.runs`, whole or not at all, with everything that is theirs;
        their start keys become free. Running, waiting and poisoned runs stay, however old.

        Events: of terminal runs, from the first one on up to the first that is not older than `policy.events`, so that
        what is left has no hole. The run's own counter stays.

        Graph versions: older than `policy.graphs`, not the latest of their graph, and referred to by no run.

        Rows that somebody else has locked are left for a later pass. A pass that finds another one under way removes
        nothing and says `busy`.
        """
        ...
