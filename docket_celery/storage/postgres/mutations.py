"""Signals from outside in PostgreSQL: a decision on the latest commit of a run, and its write.

A run at rest is read, decided on and written without being locked first: the write itself asks whether the commit that
was read is still the last one. Any other run, and one that has moved on in between, is locked before it is read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeAlias

from psycopg import errors
from psycopg.rows import DictRow

from docket_celery.errors import InvalidMutation, NotFound
from docket_celery.run.document import Run
from docket_celery.storage.contracts.rules import check_mutation
from docket_celery.storage.contracts.values import Commit, Mutated, MutationDecision, NoChange, Scope
from docket_celery.storage.postgres.commits import PostgresCommits
from docket_celery.storage.postgres.parameters import named, seen_by
from docket_celery.storage.postgres.rows import run_of
from docket_celery.storage.postgres.sessions import Session
from docket_celery.storage.postgres.transitions import Kind, of_transition, statement_for

Mutation: TypeAlias = Callable[[Run, datetime], MutationDecision]

_LOCK_TIMEOUT: Final = "1s"
_IDLE_TIMEOUT: Final = "5s"
"""After which the server ends a mutation whose process was frozen while it held the row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Signal:
    """One call of `mutate_run`; `now` pins the clock."""

    scope: Scope
    run_id: str
    mutation: Mutation
    commit_id: str
    now: datetime | None

    @property
    def parameters(self) -> dict[str, Any]:
        bounds = {"lock": _LOCK_TIMEOUT, "idle": _IDLE_TIMEOUT}
        return {"id": named(self.run_id), "tenant": seen_by(self.scope), "now": self.now, **bounds}


class PostgresMutations(PostgresCommits):
    """`mutate_run` of `RunStore`."""

    def mutate_run(self, scope: Scope, run_id: str, mutation: Mutation, *, commit_id: str) -> Mutated:
        signal = _Signal(scope=scope, run_id=run_id, mutation=mutation, commit_id=commit_id, now=self._database.now())

        def mutate(session: Session, again: bool) -> Mutated:
            # After a lost reply the statement that was sent may still be under way: the lock waits for it.
            done = None if again else self._as_read(session, signal)
            return done or self._locked(session, signal, again)

        return self._database.run(mutate)

    def _as_read(self, session: Session, signal: _Signal) -> Mutated | None:
        """The signal to a run at rest. None, and nothing has happened, for one that is not, or not any more."""
        row = self._read(session, signal)
        if not row["at_rest"]:
            return None
        try:
            return self._decided(session, signal, row, "release_as_read")
        except errors.SerializationFailure:
            # The run has moved on. A stricter isolation level, as a role may have it behind a pooler, raises for that.
            return None

    def _locked(self, session: Session, signal: _Signal, again: bool) -> Mutated:
        """The same to any run, while nobody else can change it."""
        with session.transaction():
            if self._database.execute(session, "lock_run", signal.parameters).fetchone() is None:
                raise _not_found(signal)
            row = self._read(session, signal)
            if again and row["commit_id"] == signal.commit_id:
                return Mutated(run=run_of(row), changed=True, now=row["now"])
            done = self._decided(session, signal, row, "release")
            if done is None:
                raise InvalidMutation(f"run {signal.run_id!r}: the decision does not follow from the locked row")
            return done

    def _read(self, session: Session, signal: _Signal) -> DictRow:
        row = self._database.execute(session, "fetch_run", signal.parameters).fetchone()
        if row is None:
            raise _not_found(signal)
        return row

    def _decided(self, session: Session, signal: _Signal, row: DictRow, kind: Kind) -> Mutated | None:
        """What the mutation decides on the run as read, once that is written; None when the write found it changed."""
        run, now = run_of(row), row["now"]
        decision = signal.mutation(run, now)
        match decision:
            case NoChange():
                return Mutated(run=run, changed=False, now=now)
            case Commit():
                check_mutation(run, decision)
                written = self._write(session, signal, decision, kind, row["commit_id"])
                return Mutated(run=decision.run, changed=True, now=now) if written else None
            case _:
                raise InvalidMutation(
                    f"a mutation of run {signal.run_id!r} decides Commit or NoChange, got {decision!r}"
                )

    def _write(self, session: Session, signal: _Signal, decision: Commit, kind: Kind, read: str | None) -> bool:
        transition = of_transition(
            signal.scope,
            decision.run,
            decision.events,
            decision.changes,
            decision.checkpoint_type,
            decision.schedule,
            commit_id=signal.commit_id,
            claim_token=None,
            inbox_seq=None,
            now=signal.now,
        )
        statement = statement_for(kind, decision.changes, transition)
        parameters = signal.parameters | transition | {"commit_id_read": read}
        return self._transition(session, statement, parameters).fetchone() is not None


def _not_found(signal: _Signal) -> NotFound:
    return NotFound(f"no run {signal.run_id!r} in this scope")
