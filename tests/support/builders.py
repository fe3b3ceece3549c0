"""Runs, events and proposals for tests: each builder gives a valid value, and every part can be replaced."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from itertools import count
from typing import Any

from msgspec.structs import replace
from support.clock import NOON

from docket_celery.run.document import Run, RunStatus
from docket_celery.run.events import Event, EventType
from docket_celery.run.moment import Change, CheckpointType, Replaced
from docket_celery.storage.contracts.claims import AbandonPolicy, ClaimPolicy
from docket_celery.storage.contracts.values import Commit, CommitProposal, GraphRef, InitialRun, Release, Schedule

ORDER = GraphRef(graph_id="order", graph_hash="a1" * 32)
TTL = timedelta(seconds=60)
IMMEDIATE = Release(kind="immediate")
EXTERNAL = Release(kind="external")
TERMINAL = Release(kind="terminal")

_commit_ids = count(1)


def new_commit_id() -> str:
    """A commit id that no other commit of this process has."""
    return f"commit-{next(_commit_ids)}"


def a_run(run_id: str = "run-1", *, at: datetime = NOON, ref: GraphRef = ORDER, **parts: Any) -> Run:
    """A running run after its first commit, with one event."""
    given: dict[str, Any] = {
        "status": RunStatus.RUNNING,
        "step": 1,
        "checkpoint_seq": 1,
        "event_seq": 1,
        "fields": {},
        "started_at": at,
        "updated_at": at,
    }
    return Run(id=run_id, graph_id=ref.graph_id, graph_hash=ref.graph_hash, **(given | parts))


def events_of(run: Run, first: int, *, type: EventType = EventType.STEP_COMMITTED) -> tuple[Event, ...]:
    """Events `first` to the run's counter."""
    return tuple(
        Event(run_id=run.id, seq=seq, type=type, step=run.step, at=run.updated_at, data={"number": seq})
        for seq in range(first, run.event_seq + 1)
    )


def an_initial(run: Run, *, schedule: Release | None = None, **parts: Any) -> InitialRun:
    """The run's insertion, with all its events and the schedule that its status calls for."""
    events = events_of(run, 1, type=EventType.RUN_STARTED)
    return InitialRun(run=run, schedule=schedule or _usual(run.status), **({"events": events} | parts))


def after(
    run: Run,
    *,
    at: datetime,
    status: RunStatus = RunStatus.RUNNING,
    fields: Mapping[str, Any] | None = None,
    events: int = 1,
    **parts: Any,
) -> Run:
    """The run one commit later. `fields` are added to those it has."""
    given: dict[str, Any] = {
        "status": status,
        "checkpoint_seq": run.checkpoint_seq + 1,
        "event_seq": run.event_seq + events,
        "fields": {**run.fields, **(fields or {})},
        "updated_at": at,
        "finished_at": at if status.is_terminal else None,
    }
    return replace(run, **(given | parts))


def a_commit(
    before: Run,
    token: str,
    *,
    at: datetime,
    status: RunStatus = RunStatus.RUNNING,
    schedule: Schedule | None = None,
    fields: Mapping[str, Any] | None = None,
    changes: tuple[Change, ...] | None = None,
    events: int = 1,
    **parts: Any,
) -> CommitProposal:
    """The fenced commit that follows `before`; its fields are replaced unless `changes` say otherwise."""
    run = after(before, at=at, status=status, fields=fields, events=events)
    given: dict[str, Any] = {
        "run": run,
        "events": events_of(run, before.event_seq + 1),
        "changes": _replaced(fields) if changes is None else changes,
        "checkpoint_type": CheckpointType.STEP_COMMITTED,
        "schedule": schedule or _usual(status),
        "expected_checkpoint_seq": before.checkpoint_seq,
        "claim_token": token,
        "commit_id": new_commit_id(),
    }
    return CommitProposal(**(given | parts))


def a_decision(
    before: Run,
    *,
    at: datetime,
    status: RunStatus = RunStatus.RUNNING,
    schedule: Schedule | None = None,
    fields: Mapping[str, Any] | None = None,
    events: int = 1,
    **parts: Any,
) -> Commit:
    """A mutation's decision to write the commit that follows `before`."""
    run = after(before, at=at, status=status, fields=fields, events=events)
    given: dict[str, Any] = {
        "run": run,
        "events": events_of(run, before.event_seq + 1),
        "changes": _replaced(fields),
        "checkpoint_type": CheckpointType.INTERRUPT_RESOLVED,
        "schedule": schedule or _usual(status),
    }
    return Commit(**(given | parts))


def a_scan(**parts: Any) -> ClaimPolicy:
    """A scan for up to ten runs, one minute of TTL, three attempts."""
    given: dict[str, Any] = {"limit": 10, "orphan_ttl": TTL, "max_claim_attempts": 3}
    return ClaimPolicy(**(given | parts))


def an_abandon(seq: int = 1, **parts: Any) -> AbandonPolicy:
    """A poisoning abandon at `seq`: thirty seconds of delay, two abandons allowed."""
    given: dict[str, Any] = {
        "expected_checkpoint_seq": seq,
        "delay": timedelta(seconds=30),
        "max_claim_abandons": 2,
        "reason": "node proj.tasks.charge is not known here",
    }
    return AbandonPolicy(**(given | parts))


def _replaced(fields: Mapping[str, Any] | None) -> tuple[Change, ...]:
    return tuple(Replaced(name=name, value=value) for name, value in (fields or {}).items())


def _usual(status: RunStatus) -> Release:
    if status.is_terminal:
        return TERMINAL
    return EXTERNAL if status is RunStatus.WAITING else IMMEDIATE
