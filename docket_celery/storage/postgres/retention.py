"""Retention in PostgreSQL: one statement per kind and pass, each a transaction of its own."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from psycopg import errors
from psycopg.rows import DictRow

from docket_celery.storage.contracts.retention import PruneCount, PrunePolicy
from docket_celery.storage.contracts.values import Scope
from docket_celery.storage.postgres.database import Database
from docket_celery.storage.postgres.locks import advisory_key
from docket_celery.storage.postgres.parameters import bounded, seen_by
from docket_celery.storage.postgres.sessions import Session

_SEEN_ANEW: Final = 3
"""How often graph versions are looked for again when runs keep coming to refer to them."""


_NO_PASS: Final[DictRow] = {"entered": True, "removed": 0, "events": 0, "more": False}
"""What a pass that has removed nothing says."""


class PostgresRetention:
    """Implements `Retention`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def prune(self, scope: Scope, policy: PrunePolicy) -> PruneCount:
        if policy.dry_run:
            return self._count(scope, policy)
        ages = {"prune_runs": policy.runs, "prune_events": policy.events, "prune_graphs": policy.graphs}
        passes = {
            statement: self._pass(statement, age, scope, policy) for statement, age in ages.items() if age is not None
        }
        runs, graphs = passes.get("prune_runs", _NO_PASS), passes.get("prune_graphs", _NO_PASS)
        return PruneCount(
            runs=runs["removed"],
            events=sum(row["events"] for row in passes.values()),
            graphs=graphs["removed"],
            more=any(row["more"] for row in passes.values()),
            busy=not all(row["entered"] for row in passes.values()),
        )

    def _pass(self, statement: str, age: timedelta, scope: Scope, policy: PrunePolicy) -> DictRow:
        """What one statement says of its pass: `entered`, `removed`, `events`, `more`."""
        parameters = {
            "lock": advisory_key("prune", self._database.schema),
            "tenant": seen_by(scope),
            "age": bounded(age),
            "batch": policy.batch,
            "event_batch": policy.event_batch,
            "now": policy.now or self._database.now(),
        }

        def work(session: Session, _: bool) -> DictRow:
            for _attempt in range(_SEEN_ANEW):
                try:
                    (row,) = self._database.execute(session, statement, parameters, prepare=False).fetchall()
                    return row
                except errors.ForeignKeyViolation:
                    continue
            return _NO_PASS

        return self._database.run(work)

    def _count(self, scope: Scope, policy: PrunePolicy) -> PruneCount:
        ages = {"runs": policy.runs, "events": policy.events, "graphs": policy.graphs}
        (row,) = self._database.read(
            "count_prunable",
            {
                **{name: None if age is None else bounded(age) for name, age in ages.items()},
                "tenant": seen_by(scope),
                "now": policy.now or self._database.now(),
            },
            prepare=False,
        )
        return PruneCount(runs=row["runs"], events=row["events"], graphs=row["graphs"])
