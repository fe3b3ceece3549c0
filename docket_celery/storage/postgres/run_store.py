"""Runs in PostgreSQL: reads, and what needs no document.

The store is one chain of classes, a link in each module, since each is built on those before it: `scans`,
`redemptions`, `claims`, `taking`, `starts`, `commits`, `mutations`, and in the end this one.
"""

from __future__ import annotations

from psycopg.rows import DictRow

from docket_celery.errors import InactiveRun, NotFound
from docket_celery.run.codec import EMPTY_STATE, encode_event_data
from docket_celery.run.document import Run, RunStatus
from docket_celery.run.views import RunInfo, RunPage
from docket_celery.storage.contracts.rules import forced_cancel_data
from docket_celery.storage.contracts.values import ListQuery, Mutated, Scope
from docket_celery.storage.postgres.mutations import PostgresMutations
from docket_celery.storage.postgres.parameters import named, seen_by
from docket_celery.storage.postgres.rows import bare_run_of, info_of, run_of, summary_of


class PostgresRunStore(PostgresMutations):
    """Implements `RunStore`."""

    def fetch_run(self, scope: Scope, run_id: str) -> Run:
        return run_of(self._fetch(scope, run_id))

    def inspect_run(self, scope: Scope, run_id: str) -> RunInfo:
        return info_of(self._fetch(scope, run_id))

    def _fetch(self, scope: Scope, run_id: str) -> DictRow:
        row = self._database.first(
            "fetch_run", {"id": named(run_id), "tenant": seen_by(scope), "now": self._database.now()}
        )
        if row is None:
            raise NotFound(f"no run {run_id!r} in this scope")
        return row

    def list_runs(self, scope: Scope, query: ListQuery) -> RunPage:
        rows = self._database.read(
            "list_runs",
            {
                "tenant": seen_by(scope),
                "graph_id": query.graph_id,
                "graph_hash": query.graph_hash,
                "statuses": None if query.statuses is None else [status.value for status in query.statuses],
                "poisoned": query.poisoned,
                "before_at": None if query.before is None else query.before.started_at,
                "before_id": None if query.before is None else query.before.run_id,
                "limit": query.limit + 1,
            },
            prepare=False,
        )
        return RunPage.of([summary_of(row) for row in rows], limit=query.limit, before=query.before)

    def force_cancel(self, scope: Scope, run_id: str, *, reason: str, commit_id: str) -> Mutated:
        parameters = {
            "id": named(run_id),
            "tenant": seen_by(scope),
            "state": EMPTY_STATE,
            "commit_id": commit_id,
            "data": encode_event_data(forced_cancel_data(reason)),
            "now": self._database.now(),
        }
        moved = self._database.first("force_cancel", parameters)
        row = moved or self._database.first("bare_run", parameters)
        if row is None:
            raise NotFound(f"no run {run_id!r} in this scope")
        run = bare_run_of(row)
        if run.status is not RunStatus.CANCELLED:
            raise InactiveRun(f"run {run_id!r} is {run.status.value} and cannot be cancelled")
        # An attempt whose reply was lost has left its id.
        return Mutated(run=run, changed=moved is not None or row["commit_id"] == commit_id, now=row["now"])

    def retry_poisoned_run(self, scope: Scope, run_id: str) -> Run:
        parameters = {"id": named(run_id), "tenant": seen_by(scope), "now": self._database.now()}
        self._database.write("retry_poisoned", parameters)
        run = self.fetch_run(scope, run_id)
        if run.status.is_terminal:
            raise InactiveRun(f"run {run_id!r} is {run.status.value}")
        return run
