"""Commits in PostgreSQL, each under its fence: one by itself, or those of several vehicles of this process at once.

Which of the two changes nothing but the cost: a commit that does not come back from the statement it shared is made by
itself, and only there refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import psycopg
from psycopg import errors
from psycopg.rows import DictRow

from docket_celery.errors import EventConflict, NotFound, StaleFence
from docket_celery.storage.contracts.rules import check_commit, check_commit_against
from docket_celery.storage.contracts.taking import TakeRequest
from docket_celery.storage.contracts.values import QUIET, CommitProposal, Committed, Retain, Scope
from docket_celery.storage.postgres import together, transitions
from docket_celery.storage.postgres.database import Database
from docket_celery.storage.postgres.group_commit import GroupCommit
from docket_celery.storage.postgres.sessions import Session
from docket_celery.storage.postgres.short_look import ShortLook
from docket_celery.storage.postgres.starts import PostgresStarts

_ACCOMPANIED: Final[dict[bool, transitions.Kind]] = {True: "release_and_take", False: "release_and_lease"}
"""The kind of a commit that brings the next run along, by whether that run is redeemed too or only leased."""


class PostgresCommits(PostgresStarts):
    """`commit` of `RunStore`."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._group = GroupCommit(self._commit, self._commit_together)

    def commit(self, scope: Scope, proposal: CommitProposal, *, take: TakeRequest | None = None) -> Committed:
        check_commit(proposal)
        if isinstance(proposal.schedule, Retain):
            take = None
        look = None if take is None else self._short_look(take)
        return self._group(together.CommitRequest(scope=scope, proposal=proposal, take=take, look=look))

    def _commit_together(self, requests: Sequence[together.CommitRequest]) -> list[Committed | None]:
        """What came of each of several commits; None for those that were not moved."""
        commits = together.able(requests)
        able = [written.request for written in commits]
        if not able:
            return [None for _ in requests]
        looks = together.asking(able)
        parameters = together.of_commits(commits, looks, self._database.now())
        rows = self._database.read_together(together.statement_for(able, looks), parameters)
        moved = {row["committed"]: row for row in rows}
        asked = dict(looks)
        done: list[Committed | None] = []
        for request in requests:
            run_id = request.proposal.run.id
            row = moved.get(run_id) if request in able else None
            done.append(None if row is None else self._committed(row, asked.get(run_id)))
        return done

    def _committed(self, row: DictRow, look: ShortLook | None) -> Committed:
        taken = None if look is None or row["id"] is None else self._taken(row, look)
        return Committed(now=row["committed_at"], claimed_at=row["kept_at"], taken=taken)

    def _commit(self, request: together.CommitRequest) -> Committed:
        """What came of one commit."""
        proposal, look = request.proposal, request.look
        parameters = transitions.of_transition(
            request.scope,
            proposal.run,
            proposal.events,
            proposal.changes,
            proposal.checkpoint_type,
            proposal.schedule,
            commit_id=proposal.commit_id,
            claim_token=proposal.claim_token,
            inbox_seq=proposal.inbox_seq,
            now=self._database.now(),
        )
        if isinstance(proposal.schedule, Retain):
            if proposal.schedule.quiet and proposal.events and self._commit_quietly(proposal, parameters):
                return QUIET
            kind: transitions.Kind = "retain"
        else:
            kind = "release" if look is None else _ACCOMPANIED[look.request.redeem]
        statement = transitions.statement_for(kind, proposal.changes, parameters)

        def commit(session: Session, _: bool) -> Committed:
            given = parameters if look is None else look.parameters | parameters
            row = self._transition(session, statement, given).fetchone()
            if row is not None:
                return self._committed(row, look)
            came = None if request.take is None else self._taken_before(session, request.take)
            if came is None:
                return self._repeated(session, proposal, parameters)
            # Proof that the commit took effect before, whatever has become of its own run since.
            return Committed(now=came.batch.now, claimed_at=None, taken=came)

        return self._database.run(commit)

    def _commit_quietly(self, proposal: CommitProposal, parameters: dict[str, Any]) -> bool:
        """Whether that was all: not where the fence does not hold, nor where the claim's time is to be refreshed."""
        statement = transitions.statement_for("retain_quietly", proposal.changes, parameters)
        return self._database.run(lambda session, _: self._transition(session, statement, parameters).rowcount) > 0

    def _repeated(self, session: Session, proposal: CommitProposal, parameters: dict[str, Any]) -> Committed:
        """What a commit that did not apply means: it had succeeded before, or one of the refusals."""
        run = proposal.run
        row = self._database.execute(session, "diagnose", parameters).fetchone()
        if row is None:
            raise NotFound(f"no run {run.id!r} in this scope")
        if row["commit_id"] == proposal.commit_id and row["checkpoint_seq"] == run.checkpoint_seq:
            return Committed(now=row["now"], claimed_at=row["claimed_at"] if row["held"] else None)
        if row["held"] and row["checkpoint_seq"] == proposal.expected_checkpoint_seq:
            check_commit_against(row["graph_id"], row["graph_hash"], row["event_seq"], proposal)
        raise StaleFence(
            f"run {run.id!r} is at checkpoint_seq {row['checkpoint_seq']} and "
            f"{'held' if row['held'] else 'not held'} under this token; the commit expected "
            f"{proposal.expected_checkpoint_seq}"
        )

    def _transition(self, session: Session, statement: str, parameters: dict[str, Any]) -> psycopg.Cursor[DictRow]:
        try:
            return self._database.execute(session, statement, parameters)
        except errors.UniqueViolation as error:
            if error.diag.table_name != "run_events":
                raise
            raise EventConflict(
                f"run {parameters['id']!r} already has another event among those up to {parameters['event_seq']}"
            ) from error
