"""Registered slots and totals in PostgreSQL, judged on the database's clock."""

from __future__ import annotations

from datetime import timedelta

from docket_celery.storage.contracts.fleet import Backlog, WorkerSlots
from docket_celery.storage.contracts.values import check_name
from docket_celery.storage.postgres.database import Database
from docket_celery.storage.postgres.parameters import bounded


class PostgresFleet:
    """Implements `Fleet`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def register_worker(self, worker: str, slots: int, *, ttl: timedelta, orphan_ttl: timedelta) -> None:
        self._database.write(
            "register_worker",
            {
                "worker": check_name(worker, "worker"),
                "slots": slots,
                "ttl": bounded(ttl),
                "orphan_ttl": bounded(orphan_ttl),
                "now": self._database.now(),
            },
        )

    def unregister_worker(self, worker: str) -> None:
        self._database.write("unregister_worker", {"worker": worker})

    def backlog(self, *, orphan_ttl: timedelta, count_limit: int = 10_000) -> Backlog:
        (row,) = self._database.read(
            "backlog", {"ttl": bounded(orphan_ttl), "count_limit": count_limit, "now": self._database.now()}
        )
        return Backlog(
            now=row["now"],
            due=row["due"],
            oldest_due_at=row["oldest_due_at"],
            next_wake_at=row["next_wake_at"],
            claimed=row["claimed"],
            unredeemed=row["unredeemed"],
            undelivered=row["undelivered"],
            poisoned=row["poisoned"],
            last_scan_at=row["last_scan_at"],
            workers=tuple(
                WorkerSlots(worker=worker, slots=slots, orphan_ttl=orphan_ttl, seen_at=seen_at)
                for worker, slots, orphan_ttl, seen_at in zip(
                    row["worker_names"],
                    row["worker_slots"],
                    row["worker_orphan_ttls"],
                    row["worker_seen_at"],
                    strict=True,
                )
            ),
        )
