"""The statements of transitions, put together from the parts in `sql/transitions.sql`.

A statement names only those tables that it writes to, since opening one costs even when no row follows; and the usual
few events stand in it one by one, since unpacking arrays costs more than inserting what is in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain, product
from typing import Any, Final, Literal, TypeAlias

from docket_celery.run.codec import encode_event_data
from docket_celery.run.document import Run
from docket_celery.run.events import Event
from docket_celery.run.moment import Appended, Change, CheckpointType, Replaced
from docket_celery.storage.contracts.values import Release, Retain, Schedule, Scope
from docket_celery.storage.postgres.parameters import bounded, of_changes, of_many_events, of_run, seen_by

Kind: TypeAlias = Literal[
    "retain", "retain_quietly", "release", "release_as_read", "release_and_take", "release_and_lease"
]

_KINDS: Final[dict[Kind, tuple[str, tuple[str, ...], str | None]]] = {
    "retain": ("retained", (), "answered"),
    "retain_quietly": ("retained_quietly", (), None),
    "release": ("released", (), "answered_and_told"),
    "release_as_read": ("released_as_read", (), "answered_and_told"),
    "release_and_take": ("released", ("after_the_commit", "taking"), "answered_and_taken"),
    "release_and_lease": ("released", ("after_the_commit", "leasing"), "answered_and_leased"),
}
"""Of each: the part that moves the run, the parts that follow the commit, and the part that answers. Without one, the
events are what the statement as a whole writes, and their number is all that it answers.
"""
_CHANGES: Final = {
    "": (),
    "_replacing": ("replacing",),
    "_appending": ("appending",),
    "_changing": ("replacing", "appending"),
}
_WRITTEN: Final = {
    (False, False): "",
    (True, False): "_replacing",
    (False, True): "_appending",
    (True, True): "_changing",
}
_EVENTS: Final = {"": "noting", "_at_length": "noting_many"}
_PLACES: Final = tuple((f"event_type_{place}", f"event_node_{place}", f"event_data_{place}") for place in (1, 2, 3))
"""The names that each event has in the part `noting`."""
_NO_EVENTS: Final[dict[str, Any]] = dict.fromkeys(("event_step", "event_at", *chain(*_PLACES)))


def statements() -> Iterator[tuple[str, str]]:
    """The name and the text, with its parts in braces, of each."""
    for kind, changes, events in product(_KINDS, _CHANGES, _EVENTS):
        moved, after, answer = _KINDS[kind]
        noting = f"{{{_EVENTS[events]}}}"
        tables = [f"{{{part}}}" for part in (moved, *_CHANGES[changes])]
        last = noting
        if answer is not None:
            tables += [f"events AS (\n{noting}\n)", *(f"{{{part}}}" for part in after)]
            last = f"{{{answer}}}"
        yield f"commit_{kind}{changes}{events}", "WITH " + ",\n".join(tables) + f"\n{last}"


def statement_for(kind: Kind, changes: Sequence[Change], parameters: Mapping[str, Any]) -> str:
    """The name of the one that writes just what a transition needs; `parameters` are those of `of_transition`."""
    length = "_at_length" if "event_seqs" in parameters else ""
    return f"commit_{kind}{written_by(changes)}{length}"


def written_by(changes: Iterable[Change]) -> str:
    """The part of a statement's name that says what it writes of fields: values, appended items, both or nothing."""
    kinds = {type(change) for change in changes}
    return _WRITTEN[Replaced in kinds, Appended in kinds]


def of_transition(
    scope: Scope,
    run: Run,
    events: Sequence[Event],
    changes: Sequence[Change],
    checkpoint_type: CheckpointType,
    schedule: Schedule,
    *,
    commit_id: str,
    claim_token: str | None,
    inbox_seq: int | None,
    now: datetime | None,
) -> dict[str, Any]:
    """Parameters of the statement that `statement_for` names. `claim_token` None is a serialised mutation."""
    return {
        **of_run(run, checkpoint_type),
        **of_changes(changes),
        **_of_events(events),
        **_of_schedule(schedule),
        "tenant": seen_by(scope),
        "commit_id": commit_id,
        "claim_token": claim_token,
        "expected": run.checkpoint_seq - 1,
        "expected_event_seq": run.event_seq - len(events),
        "updated_at": run.updated_at,
        "finished_at": run.finished_at if run.status.is_terminal else None,
        "inbox_seq": inbox_seq,
        "now": now,
    }


def _are_few(events: Sequence[Event]) -> bool:
    """Whether they fit into the statement itself: at most three, of one step and one instant."""
    if len(events) > len(_PLACES):
        return False
    return all(event.step == events[0].step and event.at == events[0].at for event in events[1:])


def _of_events(events: Sequence[Event]) -> dict[str, Any]:
    """Their parameters, in the form that the statement has. The row's counter numbers the few."""
    if not _are_few(events):
        return of_many_events(events)
    given = _NO_EVENTS.copy()
    for event, (type_name, node_name, data_name) in zip(events, _PLACES, strict=False):
        given["event_step"], given["event_at"] = event.step, event.at
        given[type_name], given[node_name] = event.type.value, event.node
        given[data_name] = encode_event_data(event.data)
    return given


def _of_schedule(schedule: Schedule) -> dict[str, Any]:
    match schedule:
        case Retain(ttl=ttl):
            return {"refresh_after": bounded(ttl) / 3}
        case Release(kind=kind, at=at):
            return {"schedule": kind, "wake_at": at}
