"""What a proposal must satisfy, judged the same way by every store.

Pure functions. The `check_` ones that take no stored run need no lookup, so a store calls them first; those that take
one are called under its serialisation. Nothing here reads a clock or knows how a run is stored.

The cost follows the change: a proposal's untouched fields are not looked at, except by `apply_changes`, which a store
that writes only the changes never calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TypeAlias, assert_never

from msgspec.structs import replace

from docket_celery.errors import InvalidCommit, InvalidInput, InvalidMutation
from docket_celery.run.document import JsonValue, Run, RunStatus
from docket_celery.run.events import Event, EventType
from docket_celery.run.moment import Appended, Change, CheckpointType, ParkKind, Replaced
from docket_celery.storage.contracts.values import (
    Commit,
    CommitProposal,
    InitialRun,
    Release,
    Retain,
    Schedule,
    Scope,
    check_id,
    check_name,
)

MAX_ATTEMPTS_REASON = "max_claim_attempts_exceeded"
MAX_ABANDONS_REASON = "max_claim_abandons_exceeded"

Refusal: TypeAlias = type[InvalidCommit] | type[InvalidMutation]
"""The error class under which a broken rule is reported."""

_PARKS: Mapping[RunStatus, tuple[ParkKind, ...]] = {
    RunStatus.RUNNING: ("immediate", "at"),
    RunStatus.WAITING: ("external",),
    RunStatus.DONE: ("terminal",),
    RunStatus.FAILED: ("terminal",),
    RunStatus.CANCELLED: ("terminal",),
}


def owner_of(scope: Scope) -> str | None:
    """The tenant that rows written under `scope` belong to. The system scope owns nothing: `InvalidInput`."""
    if scope.kind == "system":
        raise InvalidInput("writing needs an owner scope (tenantless or a tenant), got the system scope")
    return scope.tenant


def check_initial(initial: InitialRun) -> None:
    """Refuses an initial run that contradicts itself (`InvalidCommit`) or carries an unusable name (`InvalidInput`)."""
    run = initial.run
    check_id(run.id, "run id")
    check_name(run.graph_id, "graph id")
    check_id(run.graph_hash, "graph hash")
    if initial.start_key is not None:
        check_name(initial.start_key, "start key")
    if (initial.start_key is None) != (initial.input_digest is None):
        raise InvalidCommit(f"run {run.id!r}: a start key and an input digest come together or not at all")
    if initial.checkpoint_type is not CheckpointType.RUN_INITIALIZED:
        raise InvalidCommit(
            f"run {run.id!r}: a first commit has checkpoint type {CheckpointType.RUN_INITIALIZED.value!r}, "
            f"got {initial.checkpoint_type!r}"
        )
    if run.checkpoint_seq != 1:
        raise InvalidCommit(f"run {run.id!r}: a first commit has checkpoint_seq 1, got {run.checkpoint_seq}")
    _check_instant(run.started_at, run.id, "started_at", InvalidCommit)
    _check_document(run, initial.events, initial.schedule, InvalidCommit)
    _check_follows(0, run, initial.events, InvalidCommit)


def stamped(run: Run, now: datetime) -> Run:
    """An initial run with the store's time: what a first commit writes, and what whoever started it is given."""
    return replace(run, started_at=now, updated_at=now, finished_at=now if run.status.is_terminal else None)


def missing_versions(initials: Sequence[InitialRun]) -> str:
    """What `NotFound` says when a graph version of these runs is not there."""
    versions = {(initial.run.graph_id, initial.run.graph_hash) for initial in initials}
    named = " or ".join(f"{graph_id!r} version {graph_hash!r}" for graph_id, graph_hash in sorted(versions))
    return f"no graph {named} in this scope"


def check_commit(proposal: CommitProposal) -> None:
    """Refuses a proposal that contradicts itself: `InvalidCommit`, before any lookup."""
    run = proposal.run
    if not proposal.claim_token:
        raise InvalidCommit(f"run {run.id!r}: a commit needs its claim token, got {proposal.claim_token!r}")
    if not proposal.commit_id:
        raise InvalidCommit(f"run {run.id!r}: a commit needs an id of its own, got {proposal.commit_id!r}")
    if run.checkpoint_seq != proposal.expected_checkpoint_seq + 1:
        raise InvalidCommit(
            f"run {run.id!r}: a commit on checkpoint_seq {proposal.expected_checkpoint_seq} carries the next one, "
            f"got {run.checkpoint_seq}"
        )
    _check_document(run, proposal.events, proposal.schedule, InvalidCommit)
    _check_times(run, proposal.events, InvalidCommit)
    _check_changes(run, proposal.changes, InvalidCommit)


def check_commit_against(graph_id: str, graph_hash: str, event_seq: int, proposal: CommitProposal) -> None:
    """Refuses a proposal whose fence holds but which does not continue the stored run: `InvalidCommit`.

    The arguments are the stored run's graph version and event counter.
    """
    _check_identity(graph_id, graph_hash, proposal.run, InvalidCommit)
    _check_follows(event_seq, proposal.run, proposal.events, InvalidCommit)


def check_mutation(stored: Run, decision: Commit) -> None:
    """Refuses a mutation's decision that does not follow from the stored run it was given: `InvalidMutation`."""
    run = decision.run
    if run.id != stored.id:
        raise InvalidMutation(f"a mutation of run {stored.id!r} must keep its id, got {run.id!r}")
    if stored.status.is_terminal:
        raise InvalidMutation(f"run {run.id!r} is {stored.status.value} and cannot change any more")
    if run.checkpoint_seq != stored.checkpoint_seq + 1:
        raise InvalidMutation(
            f"run {run.id!r}: a mutation on checkpoint_seq {stored.checkpoint_seq} carries the next one, "
            f"got {run.checkpoint_seq}"
        )
    if isinstance(decision.schedule, Retain):
        raise InvalidMutation(f"run {run.id!r}: a mutation releases the claim, its schedule cannot retain it")
    _check_document(run, decision.events, decision.schedule, InvalidMutation)
    _check_times(run, decision.events, InvalidMutation)
    _check_changes(run, decision.changes, InvalidMutation)
    _check_identity(stored.graph_id, stored.graph_hash, run, InvalidMutation)
    _check_follows(stored.event_seq, run, decision.events, InvalidMutation)


def apply_changes(fields: Mapping[str, JsonValue], changes: Sequence[Change]) -> dict[str, JsonValue]:
    """The fields after `changes`. An append begins a missing list and leaves anything but a list as it is."""
    after = dict(fields)
    for change in changes:
        match change:
            case Replaced(name=name, value=value):
                after[name] = value
            case Appended(name=name, items=items):
                held = after.get(name, [])
                after[name] = [*held, *items] if isinstance(held, list) else held
            case _:
                assert_never(change)
    return after


def forced_cancel_data(reason: str) -> dict[str, JsonValue]:
    """What the event of a forced cancellation says."""
    return {"forced": True, "reason": reason} if reason else {"forced": True}


def forced_cancel_event(cancelled: Run, reason: str) -> Event:
    """The last event of a run that was cancelled by force."""
    return Event(
        run_id=cancelled.id,
        seq=cancelled.event_seq,
        type=EventType.RUN_CANCELLED,
        step=cancelled.step,
        at=cancelled.updated_at,
        data=forced_cancel_data(reason),
    )


def same_value(left: JsonValue, right: JsonValue) -> bool:
    """Whether two JSON values are equal in type and value: `1`, `1.0` and `True` all differ."""
    if left is right:
        return True
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same_value(value, right[key]) for key, value in left.items())
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same_value, left, right))
    return type(left) is type(right) and bool(left == right)


def _check_document(run: Run, events: Sequence[Event], schedule: Schedule, refusal: Refusal) -> None:
    """Events that number themselves up to the run's counter, and a schedule that its status allows."""
    first = run.event_seq - len(events) + 1
    if first < 1:
        raise refusal(f"run {run.id!r}: {len(events)} events cannot end at event_seq {run.event_seq}")
    for expected, event in enumerate(events, start=first):
        if event.run_id != run.id:
            raise refusal(f"run {run.id!r}: event {event.seq} carries another run's id, {event.run_id!r}")
        if event.seq != expected:
            raise refusal(
                f"run {run.id!r}: its {len(events)} events must be numbered {first} to {run.event_seq}, "
                f"got {event.seq} in place of {expected}"
            )
    if isinstance(schedule, Retain):
        allowed = run.status is RunStatus.RUNNING
        name = "retain"
    else:
        allowed = schedule.kind in _PARKS[run.status]
        name = schedule.kind
        _check_release(schedule, run.id, refusal)
    if not allowed:
        raise refusal(f"run {run.id!r}: the schedule {name!r} does not go with status {run.status.value!r}")


def _check_release(release: Release, run_id: str, refusal: Refusal) -> None:
    if release.kind == "at":
        _check_instant(release.at, run_id, "the wake", refusal)
    elif release.at is not None:
        raise refusal(f"run {run_id!r}: the schedule {release.kind!r} has no instant, got {release.at!r}")


def _check_times(run: Run, events: Sequence[Event], refusal: Refusal) -> None:
    """Instants that a transition proposes (a first commit's are the store's). An end has its time, and only an end."""
    _check_instant(run.updated_at, run.id, "updated_at", refusal)
    if run.status.is_terminal:
        _check_instant(run.finished_at, run.id, "finished_at", refusal)
    elif run.finished_at is not None:
        raise refusal(f"run {run.id!r} is {run.status.value} and has no finished_at, got {run.finished_at!r}")
    for event in events:
        if event.at.tzinfo is None:
            raise refusal(f"run {run.id!r}: event {event.seq} must have an instant with a time zone, got {event.at!r}")


def _check_instant(value: object, run_id: str, what: str, refusal: Refusal) -> None:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise refusal(f"run {run_id!r}: {what} must be an instant with a time zone, got {value!r}")


def _check_changes(run: Run, changes: Sequence[Change], refusal: Refusal) -> None:
    """Each field changes at most once, and to what the proposed run says."""
    seen: set[str] = set()
    for change in changes:
        if change.name in seen:
            raise refusal(f"run {run.id!r}: field {change.name!r} is changed twice")
        seen.add(change.name)
        if not _agrees(run, change):
            raise refusal(f"run {run.id!r}: the change of field {change.name!r} is not what the proposed run holds")


def _agrees(run: Run, change: Change) -> bool:
    """Whether the run holds what the change says. A list that is appended to may be unread."""
    if change.name in run.unread:
        return isinstance(change, Appended)
    if change.name not in run.fields:
        return False
    value = run.fields[change.name]
    match change:
        case Replaced():
            return same_value(value, change.value)
        case Appended():
            count = len(change.items)
            return isinstance(value, list) and same_value(value[len(value) - count :], list(change.items))
        case _:
            assert_never(change)


def _check_identity(graph_id: str, graph_hash: str, run: Run, refusal: Refusal) -> None:
    if (run.graph_id, run.graph_hash) != (graph_id, graph_hash):
        raise refusal(
            f"run {run.id!r} belongs to graph {graph_id!r} {graph_hash!r}, got {run.graph_id!r} {run.graph_hash!r}"
        )


def _check_follows(event_seq: int, run: Run, events: Sequence[Event], refusal: Refusal) -> None:
    if run.event_seq != event_seq + len(events):
        raise refusal(
            f"run {run.id!r}: {len(events)} events after event_seq {event_seq} make {event_seq + len(events)}, "
            f"got {run.event_seq}"
        )
