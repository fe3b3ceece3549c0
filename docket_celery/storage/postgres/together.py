"""The statements of several commits at once, put together from the parts in `sql/together.sql`. Never runs one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import product
from typing import Any, Final, TypeAlias

from msgspec import Struct

from docket_celery.run.codec import encode_state
from docket_celery.run.moment import Appended, Change, Replaced
from docket_celery.run.values import encode
from docket_celery.storage.contracts.taking import TakeRequest
from docket_celery.storage.contracts.values import CommitProposal, Release, Retain, Schedule, Scope
from docket_celery.storage.postgres.parameters import array, bounded, numbers, of_many_events, seen_by
from docket_celery.storage.postgres.short_look import ShortLook
from docket_celery.storage.postgres.transitions import written_by

Asking: TypeAlias = tuple[str, ShortLook]
"""The run whose commit frees a slot, and the look for the one that is to come along."""

_CHANGES: Final = {
    "": (),
    "_replacing": ("all_replacing",),
    "_appending": ("all_appending",),
    "_changing": ("all_replacing", "all_appending"),
}
_TAKING: Final = {
    "": ((), "all_answered"),
    "_and_take": (("all_given", "all_taking"), "all_taken"),
    "_and_lease": (("all_given", "all_leasing"), "all_leased"),
}
"""Of each: the parts that follow the commits, and the part that answers."""
HEAVY: Final = 65_536
"""Characters of state and values beyond which a commit goes alone: nobody waits for another's large values, and all
of a group come to no more than the driver and the server hold easily.
"""
MANY: Final = 64
"""Events beyond which it does so, too."""


class CommitRequest(Struct, frozen=True, kw_only=True, eq=False):
    """A proposal that was checked.

    take  what the slot that it frees asks for, if it frees one
    look  the look for that run; None where the slot has to ask again by itself
    """

    scope: Scope
    proposal: CommitProposal
    take: TakeRequest | None
    look: ShortLook | None


class Written(Struct, frozen=True, kw_only=True, eq=False):
    """A request with its state and its changed values as they are written."""

    request: CommitRequest
    state: str
    values: tuple[tuple[Change, str], ...]

    @property
    def is_heavy(self) -> bool:
        size = len(self.state) + sum(len(value) for _, value in self.values)
        return size > HEAVY or len(self.request.proposal.events) > MANY


def statements() -> Iterator[tuple[str, str]]:
    """The name and the text, with its parts in braces, of each."""
    for changes, taking in product(_CHANGES, _TAKING):
        after, answer = _TAKING[taking]
        tables = ("fenced", "all_moved", *_CHANGES[changes], "all_noting", *after)
        yield f"commit_all{changes}{taking}", "WITH " + ",\n".join(f"{{{part}}}" for part in tables) + f"\n{{{answer}}}"


def able(requests: Sequence[CommitRequest]) -> list[Written]:
    """Those that can go together: none that is heavy, and one of each run, since they are told apart by it."""
    apart = {request.proposal.run.id: request for request in requests}
    return [written for written in map(_written, apart.values()) if not written.is_heavy]


def _written(request: CommitRequest) -> Written:
    proposal = request.proposal
    values = ((change, _encoded(change)) for change in proposal.changes)
    return Written(request=request, state=encode_state(proposal.run), values=tuple(values))


def _encoded(change: Change) -> str:
    match change:
        case Replaced(value=value):
            return encode(value)
        case Appended(items=items):
            return encode(list(items))


def asking(requests: Sequence[CommitRequest]) -> list[Asking]:
    """Who of them asks for a run, and how: all in the way of the first."""
    looks = [(request.proposal.run.id, request.look) for request in requests if request.look is not None]
    return [(run_id, look) for run_id, look in looks if look.is_like(looks[0][1])]


def statement_for(requests: Sequence[CommitRequest], looks: Sequence[Asking]) -> str:
    """The name of the one that writes just what they need; `looks` are those of `asking`."""
    changes = (change for request in requests for change in request.proposal.changes)
    taking = "" if not looks else "_and_take" if looks[0][1].request.redeem else "_and_lease"
    return f"commit_all{written_by(changes)}{taking}"


def of_commits(commits: Sequence[Written], looks: Sequence[Asking], now: datetime | None) -> dict[str, Any]:
    """Parameters of the statement that `statement_for` names: one array for each column, and those of fields and events
    with their run's id.
    """
    requests = [written.request for written in commits]
    proposals = [request.proposal for request in requests]
    events = [event for proposal in proposals for event in proposal.events]
    return {
        **_of_runs(requests, proposals),
        **_of_schedules(proposals),
        "states": array(written.state for written in commits),
        **_of_changes(commits),
        "event_ids": array(event.run_id for event in events),
        **of_many_events(events),
        **_of_looks(looks),
        "count": len(requests),
        "now": now,
    }


def _of_runs(requests: Sequence[CommitRequest], proposals: Sequence[CommitProposal]) -> dict[str, str]:
    runs = [proposal.run for proposal in proposals]
    ends = [run.finished_at if run.status.is_terminal else None for run in runs]
    return {
        "ids": array(run.id for run in runs),
        "tenants": array(seen_by(request.scope) for request in requests),
        "graph_ids": array(run.graph_id for run in runs),
        "graph_hashes": array(run.graph_hash for run in runs),
        "claim_tokens": array(proposal.claim_token for proposal in proposals),
        "expected_seqs": numbers(run.checkpoint_seq - 1 for run in runs),
        "expected_event_seqs": numbers(proposal.run.event_seq - len(proposal.events) for proposal in proposals),
        "statuses": array(run.status.value for run in runs),
        "steps": numbers(run.step for run in runs),
        "last_event_seqs": numbers(run.event_seq for run in runs),
        "checkpoint_types": array(proposal.checkpoint_type.value for proposal in proposals),
        "commit_ids": array(proposal.commit_id for proposal in proposals),
        "updated_ats": array(run.updated_at.isoformat() for run in runs),
        "finished_ats": array(None if end is None else end.isoformat() for end in ends),
        "inbox_seqs": numbers(proposal.inbox_seq for proposal in proposals),
    }


def _of_schedules(proposals: Sequence[CommitProposal]) -> dict[str, str]:
    kinds, wakes, refreshes = zip(*(_of_schedule(proposal.schedule) for proposal in proposals), strict=True)
    return {"schedules": array(kinds), "wake_ats": array(wakes), "refresh_afters": array(refreshes)}


def _of_schedule(schedule: Schedule) -> tuple[str | None, str | None, str | None]:
    """Kind, wake and, of a claim that is kept, the age at which its time is refreshed."""
    match schedule:
        case Retain(ttl=ttl):
            return None, None, f"{bounded(ttl).total_seconds() / 3} s"
        case Release(kind=kind, at=at):
            return kind, None if at is None else at.isoformat(), None


def _of_changes(commits: Sequence[Written]) -> dict[str, str]:
    changes = [(written.request.proposal.run.id, *changed) for written in commits for changed in written.values]
    replaced = [(run_id, change.name, value) for run_id, change, value in changes if isinstance(change, Replaced)]
    appended = [(run_id, change.name, value) for run_id, change, value in changes if isinstance(change, Appended)]
    return {
        "replaced_ids": array(run_id for run_id, _, _ in replaced),
        "replaced_names": array(name for _, name, _ in replaced),
        "replaced_values": array(value for _, _, value in replaced),
        "appended_ids": array(run_id for run_id, _, _ in appended),
        "appended_names": array(name for _, name, _ in appended),
        "appended_items": array(value for _, _, value in appended),
    }


def _of_looks(looks: Sequence[Asking]) -> dict[str, Any]:
    if not looks:
        return {}
    return {
        **looks[0][1].parameters,
        "asking_ids": array(run_id for run_id, _ in looks),
        "tokens": array(look.request.token for _, look in looks),
        "preferences": array(look.request.policy.preference for _, look in looks),
    }
