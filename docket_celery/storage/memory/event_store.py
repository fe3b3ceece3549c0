"""Events in memory. They are appended by the run store, with the transition they describe."""

from __future__ import annotations

from docket_celery.run.copies import copy_events
from docket_celery.run.views import EventPage
from docket_celery.storage.contracts.bounds import check_after, check_limit
from docket_celery.storage.contracts.values import Scope
from docket_celery.storage.memory.state import State


class MemoryEventStore:
    """Implements `EventStore`."""

    def __init__(self, state: State) -> None:
        self._state = state

    def list_events(self, scope: Scope, run_id: str, *, after_seq: int = 0, limit: int = 250) -> EventPage:
        check_after(after_seq)
        check_limit(limit)
        with self._state.lock:
            stored = self._state.visible(scope, run_id)
            following = [event for event in stored.events if event.seq > after_seq][:limit]
            return EventPage(
                events=tuple(copy_events(following)),
                oldest_available=stored.events[0].seq if stored.events else None,
                latest_available=stored.events[-1].seq if stored.events else None,
                latest_committed=stored.run.event_seq,
            )
