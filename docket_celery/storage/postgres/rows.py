"""From rows to values, in one place. Never decides anything and never runs a statement."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from psycopg.adapt import Buffer, Loader
from psycopg.pq import Format
from psycopg.rows import DictRow

from docket_celery.errors import CorruptRecord
from docket_celery.run.codec import decode_event_data, decode_state, decode_value
from docket_celery.run.document import JsonValue, Run, RunStatus
from docket_celery.run.events import Event, EventType
from docket_celery.run.views import RunInfo, RunSummary
from docket_celery.storage.contracts.claims import ClaimBatch, ClaimPolicy, Lease, Redeemed
from docket_celery.storage.contracts.taking import Taken, TakeRequest
from docket_celery.storage.contracts.values import GraphRef, GraphVersion

_POSTGRES_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
_EARLIEST: Final = datetime.min.replace(tzinfo=UTC)
_LATEST: Final = datetime.max.replace(tzinfo=UTC)
_MICROSECONDS: Final = struct.Struct("!q")


class InstantLoader(Loader):
    """Reads `timestamptz` from its binary form, so that no session setting can change it.

    What Python cannot hold (infinity, years beyond 9999) becomes the nearest instant it can: one such row must not
    break a list or a claim of others.
    """

    format = Format.BINARY

    def load(self, data: Buffer) -> datetime:
        (microseconds,) = _MICROSECONDS.unpack(data)
        try:
            return _POSTGRES_EPOCH + timedelta(microseconds=microseconds)
        except OverflowError:
            return _LATEST if microseconds > 0 else _EARLIEST


def tenant_of(row: DictRow) -> str | None:
    """The owner: the stored '' is nobody."""
    return row["tenant"] or None


def run_of(row: DictRow) -> Run:
    """A run from its row, with its values gathered in arrays; those that are NULL there are unread. Raises
    `CorruptRecord`.
    """
    try:
        state = decode_state(row["state"])
        unread = _unread(row)
        return Run(
            id=row["id"],
            graph_id=row["graph_id"],
            graph_hash=row["graph_hash"],
            status=RunStatus(row["status"]),
            step=row["step"],
            checkpoint_seq=row["checkpoint_seq"],
            event_seq=row["event_seq"],
            fields=_fields(row, unread),
            unread=unread,
            tasks=state.tasks,
            interrupts=state.interrupts,
            arrived=state.arrived,
            answered=state.answered,
            outputs=state.outputs,
            failure=state.failure,
            started_at=_held(row["started_at"]),
            updated_at=_held(row["updated_at"]),
            finished_at=None if row["finished_at"] is None else _held(row["finished_at"]),
        )
    except (CorruptRecord, ValueError) as error:
        raise CorruptRecord(f"run {row['id']!r}: {error}") from error


def bare_run_of(row: DictRow) -> Run:
    """What the row itself says of a run, whatever its document and its fields hold: those are left out."""
    return Run(
        id=row["id"],
        graph_id=row["graph_id"],
        graph_hash=row["graph_hash"],
        status=RunStatus(row["status"]),
        step=row["step"],
        checkpoint_seq=row["checkpoint_seq"],
        event_seq=row["event_seq"],
        fields={},
        started_at=row["started_at"],
        updated_at=row["updated_at"],
        finished_at=row["finished_at"],
    )


def lease_of(row: DictRow, policy: ClaimPolicy) -> Lease:
    """The lease on a row that was claimed by `policy` just now."""
    return Lease(
        run_id=row["id"],
        tenant=tenant_of(row),
        graph_id=row["graph_id"],
        graph_hash=row["graph_hash"],
        checkpoint_seq=row["checkpoint_seq"],
        claim_token=row["claim_token"],
        claimed_at=row["now"],
        claim_attempt=row["claim_attempts"] + (not row["redeemed"]),
        orphan_ttl=policy.orphan_ttl,
    )


def redeemed_of(row: DictRow, token: str) -> Redeemed:
    """What the holder of the row's claim needs to begin. Raises `CorruptRecord`."""
    return Redeemed(
        run=run_of(row),
        claim_token=token,
        claimed_at=row["claimed_at"],
        claim_attempt=row["claim_attempts"],
        inbox_seq=row["inbox_seq"],
        now=row["now"],
    )


def taken_of(row: DictRow, request: TakeRequest) -> Taken:
    """What came of the row that was claimed for `request` just now."""
    batch = ClaimBatch(leases=(lease_of(row, request.policy),), poisoned=(), now=row["now"])
    if not request.redeem:
        return Taken(batch=batch)
    claim: Redeemed | CorruptRecord
    try:
        claim = redeemed_of(row, request.token)
    except CorruptRecord as error:
        claim = error
    return Taken(batch=batch, claim=claim)


def values_of(run_id: str, rows: Iterable[DictRow]) -> dict[str, JsonValue]:
    """Values of the run by name, from one row per field, with its value and its chunks. Raises `CorruptRecord`."""
    values: dict[str, JsonValue] = {}
    try:
        for row in rows:
            if row["value"] is not None:
                values[row["name"]] = decode_value(row["value"])
            for text in row["chunks"]:
                _append(values, row["name"], text)
    except CorruptRecord as error:
        raise CorruptRecord(f"run {run_id!r}: {error}") from error
    return values


def _unread(row: DictRow) -> frozenset[str]:
    """Names of the fields whose value or chunks are NULL."""
    if None not in row["field_values"] and None not in row["chunk_items"]:
        return frozenset()
    names, texts = (*row["field_names"], *row["chunk_names"]), (*row["field_values"], *row["chunk_items"])
    return frozenset(name for name, text in zip(names, texts, strict=True) if text is None)


def _fields(row: DictRow, unread: frozenset[str]) -> dict[str, JsonValue]:
    fields: dict[str, JsonValue] = {}
    for name, text in zip(row["field_names"], row["field_values"], strict=True):
        if name not in unread:
            fields[name] = decode_value(text)
    for name, text in zip(row["chunk_names"], row["chunk_items"], strict=True):
        if name not in unread:
            _append(fields, name, text)
    return fields


def _append(fields: dict[str, JsonValue], name: str, text: str) -> None:
    """Adds a chunk's items to the field's list."""
    items = decode_value(text)
    held = fields.setdefault(name, [])
    if not isinstance(held, list) or not isinstance(items, list):
        raise CorruptRecord(f"field {name!r} has appended items but is not a list")
    held.extend(items)


def _held(instant: datetime) -> datetime:
    if instant in (_EARLIEST, _LATEST):
        raise CorruptRecord("a stored instant lies outside the years 1 to 9999")
    return instant


def summary_of(row: DictRow) -> RunSummary:
    return RunSummary(
        run_id=row["id"],
        tenant=tenant_of(row),
        graph_id=row["graph_id"],
        graph_hash=row["graph_hash"],
        status=RunStatus(row["status"]),
        step=row["step"],
        checkpoint_seq=row["checkpoint_seq"],
        started_at=row["started_at"],
        updated_at=row["updated_at"],
        finished_at=row["finished_at"],
        wake_at=row["wake_at"],
        claimed_at=row["claimed_at"],
        poisoned_at=row["poisoned_at"],
    )


def info_of(row: DictRow) -> RunInfo:
    """A run with its operational facts. Raises `CorruptRecord`."""
    return RunInfo(
        run=run_of(row),
        tenant=tenant_of(row),
        start_key=row["start_key"],
        wake_at=row["wake_at"],
        claimed_at=row["claimed_at"],
        claim_redeemed=row["redeemed"],
        claim_attempts=row["claim_attempts"],
        claim_abandons=row["claim_abandons"],
        undelivered=row["undelivered"],
        abandon_reason=row["abandon_reason"],
        poisoned_at=row["poisoned_at"],
        poison_reason=row["poison_reason"],
        observed_at=row["now"],
    )


def events_of(run_id: str, rows: Iterable[DictRow]) -> tuple[Event, ...]:
    """Events in the order of their rows. Raises `CorruptRecord` for one that cannot be read; none is skipped."""
    return tuple(_event(run_id, row) for row in rows)


def _event(run_id: str, row: DictRow) -> Event:
    try:
        return Event(
            run_id=run_id,
            seq=row["seq"],
            type=EventType(row["type"]),
            step=row["step"],
            at=_held(row["at"]),
            node=row["node"],
            data=decode_event_data(row["data"]),
        )
    except (CorruptRecord, ValueError) as error:
        raise CorruptRecord(f"event {row['seq']} of run {run_id!r}: {error}") from error


def ref_of(row: DictRow) -> GraphRef:
    return GraphRef(graph_id=row["graph_id"], graph_hash=row["graph_hash"])


def graph_of(row: DictRow) -> GraphVersion:
    """A graph version. Raises `CorruptRecord` when its document is not an object."""
    document: Any = decode_value(row["document"])
    if not isinstance(document, dict):
        raise CorruptRecord(f"graph {row['graph_id']!r} version {row['graph_hash']!r}: its document is not an object")
    return GraphVersion(ref=ref_of(row), document=document, published_at=_held(row["published_at"]))
