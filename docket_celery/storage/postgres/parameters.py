"""From proposals to statement parameters. Never runs a statement.

Arrays are written as literals here: an empty one has no type, so that the driver would prepare the same statement more
than once, and its own way costs more than the rest of a commit's parameters together.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format

from docket_celery.errors import InvalidInput, NotFound, shown
from docket_celery.graph.elements import LONGEST_DELAY
from docket_celery.run.codec import encode_event_data, encode_state
from docket_celery.run.document import Run
from docket_celery.run.events import Event
from docket_celery.run.moment import Appended, Change, CheckpointType, Replaced
from docket_celery.run.values import encode
from docket_celery.storage.contracts.values import InitialRun, Scope, check_name

_LONGEST_DELAY: Final = timedelta(seconds=LONGEST_DELAY)
_INTERVAL: Final = struct.Struct("!qii")
_NO_CHANGES: Final = dict.fromkeys(("replaced_names", "replaced_values", "appended_names", "appended_items"), "{}")


class SpanDumper(Dumper):
    """Writes a `timedelta` as so many microseconds: PostgreSQL counts the days of an interval in the session's time
    zone, where some have 23 hours and some 25.
    """

    format = Format.BINARY
    oid = psycopg.adapters.types["interval"].oid

    def dump(self, obj: timedelta) -> bytes:
        return _INTERVAL.pack((obj.days * 86_400 + obj.seconds) * 1_000_000 + obj.microseconds, 0, 0)


def seen_by(scope: Scope) -> str | None:
    """The tenant a row must have to be visible: NULL for any, '' for none."""
    return None if scope.kind == "system" else scope.tenant or ""


def named(run_id: str) -> str:
    """`run_id`, when a run could have it; what the database could not even compare is `NotFound` like any stranger."""
    try:
        return check_name(run_id, "run id")
    except InvalidInput as error:
        raise NotFound(f"no run {shown(run_id)} in this scope") from error


def bounded(delay: timedelta) -> timedelta:
    """The delay, at most the longest there is, in either direction: no instant computed from it leaves what PostgreSQL
    and Python hold.
    """
    return max(min(delay, _LONGEST_DELAY), -_LONGEST_DELAY)


def array(items: Iterable[str | None]) -> str:
    """An array literal, whatever the type of its elements; None is NULL."""
    return "{" + ",".join(map(_element, items)) + "}"


def numbers(items: Iterable[int]) -> str:
    """An array literal of whole numbers."""
    return "{" + ",".join(map(str, items)) + "}"


def _element(item: str | None) -> str:
    if item is None:
        return "NULL"
    if "\\" in item:
        item = item.replace("\\", "\\\\")
    if '"' in item:
        item = item.replace('"', '\\"')
    return f'"{item}"'


def of_initial(initial: InitialRun, tenant: str | None, now: datetime | None) -> dict[str, Any]:
    """Parameters of `insert_run`."""
    run = initial.run
    return {
        **of_run(run, initial.checkpoint_type),
        **of_changes([Replaced(name=name, value=value) for name, value in run.fields.items()]),
        **of_many_events(initial.events),
        "tenant": tenant or "",
        "schedule": initial.schedule.kind,
        "wake_at": initial.schedule.at,
        "start_key": initial.start_key,
        # The columns come in a pair; a start without a digest matches every other one without.
        "input_digest": None if initial.start_key is None else initial.input_digest or "",
        "now": now,
    }


def of_initials(initials: Sequence[InitialRun], tenant: str | None, now: datetime | None) -> dict[str, Any]:
    """Parameters of `insert_runs`: one array for each column, and those of fields and events with their run's id."""
    runs = [initial.run for initial in initials]
    fields = [(run.id, name, value) for run in runs for name, value in run.fields.items()]
    events = [event for initial in initials for event in initial.events]
    wakes = [initial.schedule.at for initial in initials]
    return {
        "ids": array(run.id for run in runs),
        "graph_ids": array(run.graph_id for run in runs),
        "graph_hashes": array(run.graph_hash for run in runs),
        "statuses": array(run.status.value for run in runs),
        "steps": numbers(run.step for run in runs),
        "last_event_seqs": numbers(run.event_seq for run in runs),
        "states": array(encode_state(run) for run in runs),
        "schedules": array(initial.schedule.kind for initial in initials),
        "wake_ats": array(None if at is None else at.isoformat() for at in wakes),
        "start_keys": array(initial.start_key for initial in initials),
        "input_digests": array(initial.input_digest for initial in initials),
        "field_ids": array(run_id for run_id, _, _ in fields),
        "field_names": array(name for _, name, _ in fields),
        "field_values": array(encode(value) for _, _, value in fields),
        "event_ids": array(event.run_id for event in events),
        **of_many_events(events),
        "checkpoint_type": CheckpointType.RUN_INITIALIZED.value,
        "tenant": tenant or "",
        "now": now,
    }


def of_run(run: Run, checkpoint_type: CheckpointType) -> dict[str, Any]:
    """Parameters of what the run's own row holds."""
    return {
        "id": run.id,
        "graph_id": run.graph_id,
        "graph_hash": run.graph_hash,
        "status": run.status.value,
        "step": run.step,
        "checkpoint_seq": run.checkpoint_seq,
        "event_seq": run.event_seq,
        "checkpoint_type": checkpoint_type.value,
        "state": encode_state(run),
    }


def of_changes(changes: Sequence[Change]) -> dict[str, Any]:
    """Parameters of the fields that differ."""
    if not changes:
        return _NO_CHANGES
    replaced = [change for change in changes if isinstance(change, Replaced)]
    appended = [change for change in changes if isinstance(change, Appended)]
    return {
        "replaced_names": array(change.name for change in replaced),
        "replaced_values": array(encode(change.value) for change in replaced),
        "appended_names": array(change.name for change in appended),
        "appended_items": array(encode(list(change.items)) for change in appended),
    }


def of_many_events(events: Sequence[Event]) -> dict[str, Any]:
    """Parameters of any number of events."""
    return {
        "event_seqs": numbers(event.seq for event in events),
        "event_types": array(event.type.value for event in events),
        "event_steps": numbers(event.step for event in events),
        "event_ats": array(event.at.isoformat() for event in events),
        "event_nodes": array(event.node for event in events),
        "event_data": array(encode_event_data(event.data) for event in events),
    }
