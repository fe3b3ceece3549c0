"""Runs in PostgreSQL: reads and mutations. What else a store of runs does is in `commits` and the modules below it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

from psycopg.rows import DictRow

from docket_celery.errors import InactiveRun, InvalidMutation, NotFound
from docket_celery.run.codec import EMPTY_STATE, encode_event_data
from docket_celery.run.document import Run, RunStatus
from docket_celery.run.views import RunCursor, RunInfo, RunPage
from docket_celery.storage.contracts.rules import check_mutation, forced_cancel_data
from docket_celery.storage.contracts.values import Commit, ListQuery, Mutated, MutationDecision, NoChange, Scope
from docket_celery.storage.postgres.commits import PostgresCommits
from docket_celery.storage.postgres.parameters import named, seen_by
from docket_celery.storage.postgres.rows import bare_run_of, info_of, run_of, summary_of
from docket_celery.storage.postgres.sessions import Session
from docket_celery.storage.postgres.transitions import check_instants, of_transition, statement_for

_MUTATION_LOCK_TIMEOUT: Final = "1s"
_MUTATION_IDLE_TIMEOUT: Final = "5s"
"""After which the server ends a mutation whose process was frozen while it held the row."""


class PostgresRunStore(PostgresCommits):
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
                "before_at": None if query.before is None else query.before.started_at,
                "before_id": None if query.before is None else query.before.run_id,
                "limit": query.limit + 1,
            },
            prepare=False,
        )
        page = tuple(summary_of(row) for row in rows[: query.limit])
        last = query.before
        if page:
            last = RunCursor(started_at=page[-1].started_at, run_id=page[-1].run_id)
        return RunPage(
            runs=page,
            next_before=None if last is None else last.encode(),
            has_more=len(rows) > query.limit,
        )

    def mutate_run(
        self, scope: Scope, run_id: str, mutation: Callable[[Run, datetime], MutationDecision], *, commit_id: str
    ) -> Mutated:
        pinned = self._database.now()
        parameters = {"id": named(run_id), "tenant": seen_by(scope), "now": pinned}

        def mutate(session: Session, again: bool) -> Mutated:
            with session.transaction():
                bounds = {"lock": _MUTATION_LOCK_TIMEOUT, "idle": _MUTATION_IDLE_TIMEOUT}
                if self._database.execute(session, "lock_run", parameters | bounds).fetchone() is None:
                    raise NotFound(f"no run {run_id!r} in this scope")
                (row,) = self._database.execute(session, "fetch_run", parameters).fetchall()
                run, now = run_of(row), row["now"]
                if again and row["commit_id"] == commit_id:
                    return Mutated(run=run, changed=True, now=now)
                decision = mutation(run, now)
                match decision:
                    case NoChange():
                        return Mutated(run=run, changed=False, now=now)
                    case Commit():
                        check_mutation(run, decision)
                        self._write(session, scope, decision, commit_id, pinned)
                        return Mutated(run=decision.run, changed=True, now=now)
                    case _:
                        raise InvalidMutation(
                            f"a mutation of run {run_id!r} decides Commit or NoChange, got {decision!r}"
                        )

        return self._database.run(mutate)

    def _write(self, session: Session, scope: Scope, decision: Commit, commit_id: str, now: datetime | None) -> None:
        check_instants(decision.run, decision.events, InvalidMutation)
        parameters = of_transition(
            scope,
            decision.run,
            decision.events,
            decision.changes,
            decision.checkpoint_type,
            decision.schedule,
            commit_id=commit_id,
            claim_token=None,
            inbox_seq=None,
            now=now,
        )
        statement = statement_for("release", decision.changes, decision.events)
        if self._transition(session, statement, parameters) is None:
            raise InvalidMutation(f"run {decision.run.id!r}: the decision does not follow from the locked row")

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
        return Mutated(run=run, changed=moved is not None, now=row["now"])

    def retry_poisoned_run(self, scope: Scope, run_id: str) -> Run:
        parameters = {"id": named(run_id), "tenant": seen_by(scope), "now": self._database.now()}
        self._database.write("retry_poisoned", parameters)
        run = self.fetch_run(scope, run_id)
        if run.status.is_terminal:
            raise InactiveRun(f"run {run_id!r} is {run.status.value}")
        return run
