"""The PostgreSQL store: the authority over every run. Importing it connects to nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from docket_celery.storage.contracts.values import Storage
from docket_celery.storage.postgres.database import Database
from docket_celery.storage.postgres.event_store import PostgresEventStore
from docket_celery.storage.postgres.fleet import PostgresFleet
from docket_celery.storage.postgres.graph_store import PostgresGraphStore
from docket_celery.storage.postgres.retention import PostgresRetention
from docket_celery.storage.postgres.run_store import PostgresRunStore

__all__ = ["open_storage"]


def open_storage(
    url: str,
    *,
    schema: str = "docket",
    max_connections: int = 4,
    now: Callable[[], datetime] | None = None,
    notify: bool = False,
) -> Storage:
    """The stores over the database at `url`, a PostgreSQL URL or connection string. Connects at first use.

    The schema must have been migrated. `max_connections` bounds what one process opens. `now` pins the clock of the
    database, for tests. With `notify`, writes that make a run due at once tell the listener of the schema.
    """
    database = Database(url, schema=schema, max_connections=max_connections, now=now, notify=notify)
    return Storage(
        graphs=PostgresGraphStore(database),
        runs=PostgresRunStore(database),
        events=PostgresEventStore(database),
        fleet=PostgresFleet(database),
        retention=PostgresRetention(database),
    )
