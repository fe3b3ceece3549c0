"""Events: reads and retention. Appending is part of a run's transition and happens nowhere else."""

from __future__ import annotations

from typing import Protocol

from docket_celery.run.views import EventPage
from docket_celery.storage.contracts.values import Scope


class EventStore(Protocol):
    """Reads what runs have left behind."""

    def list_events(self, scope: Scope, run_id: str, *, after_seq: int = 0, limit: int = 250) -> EventPage:
        """Events with `seq > after_seq`, in order, with the available bounds of the same snapshot.

        `NotFound` for an unknown run or a wrong scope; an undecodable row raises `CorruptRecord` and is never skipped.
        """
        ...
