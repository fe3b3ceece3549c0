"""Events: reads only. Appending is part of a run's transition, removing is `retention`'s."""

from __future__ import annotations

from typing import Protocol

from docket_celery.run.views import EventPage
from docket_celery.storage.contracts.values import Scope


class EventStore(Protocol):
    """Reads what runs have left behind."""

    def list_events(self, scope: Scope, run_id: str, *, after_seq: int = 0, limit: int = 250) -> EventPage:
        """Events with `seq > after_seq`, in order, with the available bounds of the same snapshot.

        `InvalidInput` for a limit outside 1..1000 or a negative position. `NotFound` for an unknown run or a wrong
        scope; an undecodable row raises `CorruptRecord` and is never skipped.
        """
        ...
