"""The reference store: everything in this process's memory, under one lock.

Read it to understand the contract; use it in tests. It holds the same rules as the PostgreSQL store and passes the same
suite, but nothing in it survives the process and no other process sees it.
"""

from __future__ import annotations

from docket_celery.clock import Clock, IdSource, RandomIds, SystemClock
from docket_celery.storage.contracts.values import Storage
from docket_celery.storage.memory.event_store import MemoryEventStore
from docket_celery.storage.memory.fleet import MemoryFleet
from docket_celery.storage.memory.graph_store import MemoryGraphStore
from docket_celery.storage.memory.retention import MemoryRetention
from docket_celery.storage.memory.run_store import MemoryRunStore
from docket_celery.storage.memory.state import State

__all__ = ["open_storage"]


def open_storage(*, clock: Clock | None = None, ids: IdSource | None = None) -> Storage:
    """A new, empty store. `clock` is the store's clock, which decides everything; `ids` makes its claim tokens."""
    return of_state(State(clock=clock or SystemClock(), ids=ids or RandomIds()))


def of_state(state: State) -> Storage:
    """The stores over `state`, for whoever wants to look behind the contract."""
    return Storage(
        graphs=MemoryGraphStore(state),
        runs=MemoryRunStore(state),
        events=MemoryEventStore(state),
        fleet=MemoryFleet(state),
        retention=MemoryRetention(state),
    )
