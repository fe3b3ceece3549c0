"""Events in PostgreSQL: reads only. They are written by the run store, with the transition they describe."""

from __future__ import annotations

from docket_celery.errors import NotFound
from docket_celery.run.views import EventPage
from docket_celery.storage.contracts.bounds import check_after, check_limit
from docket_celery.storage.contracts.values import Scope
from docket_celery.storage.postgres.database import Database
from docket_celery.storage.postgres.parameters import named, seen_by
from docket_celery.storage.postgres.rows import events_of


class PostgresEventStore:
    """Implements `EventStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def list_events(self, scope: Scope, run_id: str, *, after_seq: int = 0, limit: int = 250) -> EventPage:
        rows = self._database.read(
            "list_events",
            {
                "id": named(run_id),
                "tenant": seen_by(scope),
                "after_seq": check_after(after_seq),
                "limit": check_limit(limit),
            },
        )
        if not rows:
            raise NotFound(f"no run {run_id!r} in this scope")
        return EventPage(
            events=events_of(run_id, (row for row in rows if row["seq"] is not None)),
            oldest_available=rows[0]["oldest_available"],
            latest_available=rows[0]["latest_available"],
            latest_committed=rows[0]["latest_committed"],
        )
