"""Runs in memory: reads and transitions. The claim operations are in `claims`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from docket_celery.errors import (
    EventConflict,
    InactiveRun,
    InvalidCommit,
    InvalidInput,
    InvalidMutation,
    KeyConflict,
    NotFound,
    StaleFence,
)
from docket_celery.run.copies import copy_events, copy_run
from docket_celery.run.document import Run, RunStatus
from docket_celery.run.events import Event
from docket_celery.run.moment import Change
from docket_celery.run.views import RunInfo, RunPage, RunSummary
from docket_celery.storage.contracts.rules import (
    Refusal,
    apply_changes,
    check_commit,
    check_commit_against,
    check_initial,
    check_mutation,
    forced_cancel_event,
    missing_versions,
    owner_of,
    same_value,
    stamped,
)
from docket_celery.storage.contracts.taking import TakeRequest
from docket_celery.storage.contracts.values import (
    QUIET,
    Commit,
    CommitProposal,
    Committed,
    GraphRef,
    InitialRun,
    ListQuery,
    Mutated,
    MutationDecision,
    NoChange,
    Release,
    Retain,
    Scope,
    Started,
)
from docket_celery.storage.memory.claims import MemoryClaims
from docket_celery.storage.memory.state import StoredRun


class MemoryRunStore(MemoryClaims):
    """Implements `RunStore`."""

    def insert_run(self, scope: Scope, initial: InitialRun, *, connection: Any = None) -> Started:
        (started,) = self.insert_runs(scope, [initial], connection=connection)
        return started

    def insert_runs(
        self, scope: Scope, initials: Sequence[InitialRun], *, connection: Any = None
    ) -> tuple[Started, ...]:
        if connection is not None:
            raise InvalidInput("the memory store has no database, so a run cannot join a connection's transaction")
        for initial in initials:
            check_initial(initial)
        tenant = owner_of(scope)
        with self._state.lock:
            now = self._state.clock.now()
            new: dict[str, StoredRun] = {}
            keys: dict[str, StoredRun] = {}
            started = tuple(self._starting(tenant, initial, now, new, keys) for initial in initials)
            self._state.runs |= new
            self._state.start_keys |= {(tenant, key): stored.run.id for key, stored in keys.items()}
            return started

    def _starting(
        self,
        tenant: str | None,
        initial: InitialRun,
        now: datetime,
        new: dict[str, StoredRun],
        keys: dict[str, StoredRun],
    ) -> Started:
        """What becomes of one run; what is to be stored is added to `new`, and to `keys` under its start key."""
        key = initial.start_key
        if key is not None:
            holder = keys.get(key) or self._state.runs.get(self._state.start_keys.get((tenant, key), ""))
            if holder is not None:
                return self._started_before(holder, initial, now)
        ref = GraphRef(graph_id=initial.run.graph_id, graph_hash=initial.run.graph_hash)
        if (tenant, ref) not in self._state.graphs:
            raise NotFound(missing_versions([initial]))
        if initial.run.id in self._state.runs or initial.run.id in new:
            raise InvalidCommit(f"run id {initial.run.id!r} is taken")
        stored = StoredRun(
            run=stamped(copy_run(initial.run), now),
            tenant=tenant,
            start_key=key,
            input_digest=initial.input_digest,
            wake_at=_wake(initial.schedule, now),
            events=copy_events(initial.events, at=now),
        )
        new[stored.run.id] = stored
        if key is not None:
            keys[key] = stored
        return Started(run=copy_run(stored.run), created=True, now=now)

    def _started_before(self, stored: StoredRun, initial: InitialRun, now: datetime) -> Started:
        held_for = stored.run.graph_id, stored.run.graph_hash, stored.input_digest
        if held_for != (initial.run.graph_id, initial.run.graph_hash, initial.input_digest):
            raise KeyConflict(initial.start_key or "", stored.run.id)
        return Started(run=copy_run(stored.run), created=False, now=now)

    def fetch_run(self, scope: Scope, run_id: str) -> Run:
        with self._state.lock:
            return copy_run(self._state.visible(scope, run_id).run)

    def list_runs(self, scope: Scope, query: ListQuery) -> RunPage:
        with self._state.lock:
            matching = [s for s in self._state.runs.values() if scope.sees(s.tenant) and _matches(query, s)]
            newest_first = sorted(matching, key=_age, reverse=True)
            found = [_summary(stored) for stored in newest_first[: query.limit + 1]]
            return RunPage.of(found, limit=query.limit, before=query.before)

    def inspect_run(self, scope: Scope, run_id: str) -> RunInfo:
        with self._state.lock:
            stored = self._state.visible(scope, run_id)
            return RunInfo(
                run=copy_run(stored.run),
                tenant=stored.tenant,
                start_key=stored.start_key,
                wake_at=stored.wake_at,
                claimed_at=stored.claimed_at,
                claim_redeemed=stored.claim_redeemed,
                claim_attempts=stored.claim_attempts,
                claim_abandons=stored.claim_abandons,
                undelivered=stored.undelivered,
                abandon_reason=stored.abandon_reason,
                poisoned_at=stored.poisoned_at,
                poison_reason=stored.poison_reason,
                observed_at=self._state.clock.now(),
            )

    def commit(self, scope: Scope, proposal: CommitProposal, *, take: TakeRequest | None = None) -> Committed:
        check_commit(proposal)
        if take is None or isinstance(proposal.schedule, Retain):
            return self._commit(scope, proposal)
        came = self._taken_before(take)
        if came is not None:
            # Proof that the commit took effect before, whatever has become of its own run since.
            return Committed(now=came.batch.now, claimed_at=None, taken=came)
        return replace(self._commit(scope, proposal), taken=self._take_along(take))

    def _commit(self, scope: Scope, proposal: CommitProposal) -> Committed:
        run = proposal.run
        with self._state.lock:
            now = self._state.clock.now()
            stored = self._state.visible(scope, run.id)
            if stored.commit_id == proposal.commit_id and stored.run.checkpoint_seq == run.checkpoint_seq:
                # A repeat: the first reply was lost. What the claim became since is somebody else's business.
                kept = stored.claimed_at if stored.is_held_under(proposal.claim_token) else None
                return Committed(now=now, claimed_at=kept)
            held = stored.is_held_under(proposal.claim_token)
            if not held or stored.run.checkpoint_seq != proposal.expected_checkpoint_seq:
                raise StaleFence(
                    f"run {run.id!r} is at checkpoint_seq {stored.run.checkpoint_seq} and "
                    f"{'held' if held else 'not held'} under this token; the commit expected "
                    f"{proposal.expected_checkpoint_seq}"
                )
            check_commit_against(stored.run.graph_id, stored.run.graph_hash, stored.run.event_seq, proposal)
            self._write(stored, run, proposal.events, proposal.changes, InvalidCommit)
            stored.commit_id = proposal.commit_id
            if isinstance(proposal.schedule, Retain):
                if stored.claimed_at is not None and now - stored.claimed_at > proposal.schedule.ttl / 3:
                    stored.claimed_at = now
                elif proposal.schedule.quiet:
                    return QUIET
                return Committed(now=now, claimed_at=stored.claimed_at)
            stored.clear_claim()
            stored.wake_at = _wake(proposal.schedule, now)
            if run.status is RunStatus.RUNNING and stored.inbox_seq > proposal.inbox_seq:
                stored.wake_at = now
            return Committed(now=now, claimed_at=None)

    def mutate_run(
        self, scope: Scope, run_id: str, mutation: Callable[[Run, datetime], MutationDecision], *, commit_id: str
    ) -> Mutated:
        with self._state.lock:
            stored = self._state.visible(scope, run_id)
            now = self._state.clock.now()
            decision = mutation(copy_run(stored.run), now)
            match decision:
                case NoChange():
                    return Mutated(run=copy_run(stored.run), changed=False, now=now)
                case Commit():
                    check_mutation(stored.run, decision)
                    self._write(stored, decision.run, decision.events, decision.changes, InvalidMutation)
                    stored.commit_id = commit_id
                    stored.clear_claim()
                    stored.wake_at = _wake(decision.schedule, now)
                    return Mutated(run=copy_run(stored.run), changed=True, now=now)
                case _:
                    raise InvalidMutation(f"a mutation of run {run_id!r} decides Commit or NoChange, got {decision!r}")

    def force_cancel(self, scope: Scope, run_id: str, *, reason: str, commit_id: str) -> Mutated:
        with self._state.lock:
            stored = self._state.visible(scope, run_id)
            run = stored.run
            if run.status.is_terminal and run.status is not RunStatus.CANCELLED:
                raise InactiveRun(f"run {run_id!r} is {run.status.value} and cannot be cancelled")
            changed, now = run.status is not RunStatus.CANCELLED, self._state.clock.now()
            if changed:
                cancelled = Run(
                    id=run.id,
                    graph_id=run.graph_id,
                    graph_hash=run.graph_hash,
                    status=RunStatus.CANCELLED,
                    step=run.step,
                    checkpoint_seq=run.checkpoint_seq + 1,
                    event_seq=run.event_seq + 1,
                    fields=run.fields,
                    started_at=run.started_at,
                    updated_at=now,
                    finished_at=now,
                )
                event = forced_cancel_event(cancelled, reason)
                self._write(stored, cancelled, [event], [], InvalidMutation)
                stored.commit_id = commit_id
                stored.clear_claim()
                stored.wake_at = None
            return Mutated(run=replace(copy_run(stored.run), fields={}), changed=changed, now=now)

    def retry_poisoned_run(self, scope: Scope, run_id: str) -> Run:
        with self._state.lock:
            stored = self._state.visible(scope, run_id)
            if stored.run.status.is_terminal:
                raise InactiveRun(f"run {run_id!r} is {stored.run.status.value}")
            if stored.poisoned_at is not None:
                stored.clear_poison()
                stored.reset_counters()
                stored.wake_at = self._state.clock.now()
            return copy_run(stored.run)

    def _write(
        self, stored: StoredRun, run: Run, events: Sequence[Event], changes: Sequence[Change], refusal: Refusal
    ) -> None:
        """Replaces the document and appends the events, or raises and changes nothing.

        A store that writes only the changes must end with the proposed fields; here that is checked.
        """
        fields = apply_changes(stored.run.fields, changes)
        read = {name: value for name, value in fields.items() if name not in run.unread}
        own_run, own_events = copy_run(replace(run, fields=fields, unread=frozenset())), copy_events(events)
        if not same_value(read, run.fields) or not run.unread <= fields.keys():
            raise refusal(f"run {run.id!r}: the changes do not turn the stored fields into the proposed ones")
        taken = {event.seq for event in stored.events} & {event.seq for event in own_events}
        if taken:
            raise EventConflict(f"run {run.id!r} already has other events {sorted(taken)}")
        stored.run = own_run
        stored.events += own_events
        stored.reset_counters()
        stored.clear_poison()


def _wake(schedule: Release | Retain, now: datetime) -> datetime | None:
    if isinstance(schedule, Retain):
        return None
    return {"immediate": now, "at": schedule.at, "external": None, "terminal": None}[schedule.kind]


def _matches(query: ListQuery, stored: StoredRun) -> bool:
    run = stored.run
    return (
        (query.graph_id is None or run.graph_id == query.graph_id)
        and (query.graph_hash is None or run.graph_hash == query.graph_hash)
        and (query.statuses is None or run.status in query.statuses)
        and (not query.poisoned or stored.poisoned_at is not None)
        and (query.before is None or (run.started_at, run.id) < (query.before.started_at, query.before.run_id))
    )


def _age(stored: StoredRun) -> tuple[datetime, str]:
    return stored.run.started_at, stored.run.id


def _summary(stored: StoredRun) -> RunSummary:
    run = stored.run
    return RunSummary(
        run_id=run.id,
        tenant=stored.tenant,
        graph_id=run.graph_id,
        graph_hash=run.graph_hash,
        status=run.status,
        step=run.step,
        checkpoint_seq=run.checkpoint_seq,
        started_at=run.started_at,
        updated_at=run.updated_at,
        finished_at=run.finished_at,
        wake_at=stored.wake_at,
        claimed_at=stored.claimed_at,
        poisoned_at=stored.poisoned_at,
    )
