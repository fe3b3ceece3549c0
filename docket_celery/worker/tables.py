"""How the commands show things: a table for a terminal, a plain record for `--json`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from docket_celery.run.events import Event
from docket_celery.run.values import encode
from docket_celery.run.views import EventPage, RunInfo, RunPage, RunSummary
from docket_celery.storage.contracts.fleet import Backlog
from docket_celery.storage.contracts.retention import PruneCount
from docket_celery.storage.contracts.values import GraphVersion
from docket_celery.worker.doctor import Finding

LONGEST_CELL = 200
"""Characters of a value in a table; `--json` shows it whole."""
NEVER_CUT = ("run_id", "id", "check", "verdict")
"""Columns to copy from, into the next command: the others give way on a narrow terminal."""


def backlog_record(backlog: Backlog) -> dict[str, Any]:
    """All totals, with times as ISO text."""
    return {
        "now": _time(backlog.now),
        "due": backlog.due,
        "oldest_due_at": _time(backlog.oldest_due_at),
        "next_wake_at": _time(backlog.next_wake_at),
        "claimed": backlog.claimed,
        "unredeemed": backlog.unredeemed,
        "undelivered": backlog.undelivered,
        "poisoned": backlog.poisoned,
        "last_scan_at": _time(backlog.last_scan_at),
        "workers": [
            {
                "worker": worker.worker,
                "slots": worker.slots,
                "orphan_ttl": worker.orphan_ttl.total_seconds(),
                "seen_at": _time(worker.seen_at),
            }
            for worker in backlog.workers
        ],
    }


def backlog_table(backlog: Backlog) -> Group:
    """Totals above, workers below."""
    record = backlog_record(backlog)
    workers = record.pop("workers")
    return Group(_pairs("queue", record), table("workers", ("worker", "slots", "orphan_ttl", "seen_at"), workers))


def finding_records(findings: Sequence[Finding]) -> list[dict[str, str]]:
    """Each check with what was seen, the verdict, and what to do."""
    return [asdict(finding) for finding in findings]


def finding_table(findings: Sequence[Finding]) -> Table:
    """One row per check."""
    return table("doctor", ("verdict", "check", "seen", "advice"), finding_records(findings))


def graph_record(version: GraphVersion) -> dict[str, Any]:
    """Names one version."""
    return {
        "graph_id": version.ref.graph_id,
        "graph_hash": version.ref.graph_hash,
        "published_at": _time(version.published_at),
    }


def graph_table(versions: Sequence[GraphVersion]) -> Table:
    """One row per graph."""
    return table("graphs", ("graph_id", "graph_hash", "published_at"), map(graph_record, versions))


def run_record(run: RunSummary) -> dict[str, Any]:
    """One summary."""
    return {
        "run_id": run.run_id,
        "graph_id": run.graph_id,
        "status": "poisoned" if run.poisoned_at is not None else run.status.value,
        "step": run.step,
        "checkpoint_seq": run.checkpoint_seq,
        "started_at": _time(run.started_at),
        "finished_at": _time(run.finished_at),
        "wake_at": _time(run.wake_at),
        "claimed_at": _time(run.claimed_at),
    }


def page_record(page: RunPage) -> dict[str, Any]:
    """A page with its cursor."""
    return {"runs": [run_record(run) for run in page.runs], "next_before": page.next_before, "has_more": page.has_more}


def run_table(page: RunPage) -> Table:
    """One row per run, with no more columns than 80 characters hold; `docket show` tells the rest."""
    columns = ("run_id", "graph_id", "status", "step", "started_at")
    title = f"runs (more: --before {page.next_before})" if page.has_more else "runs"
    return table(title, columns, map(run_record, page.runs))


def info_record(info: RunInfo) -> dict[str, Any]:
    """One run with everything an operator asks about."""
    run = info.run
    return {
        "run_id": run.id,
        "tenant": info.tenant,
        "graph_id": run.graph_id,
        "graph_hash": run.graph_hash,
        "view": info.view,
        "step": run.step,
        "checkpoint_seq": run.checkpoint_seq,
        "started_at": _time(run.started_at),
        "updated_at": _time(run.updated_at),
        "finished_at": _time(run.finished_at),
        "start_key": info.start_key,
        "wake_at": _time(info.wake_at),
        "claimed_at": _time(info.claimed_at),
        "claim_redeemed": info.claim_redeemed,
        "claim_attempts": info.claim_attempts,
        "claim_abandons": info.claim_abandons,
        "undelivered": info.undelivered,
        "abandon_reason": info.abandon_reason,
        "poisoned_at": _time(info.poisoned_at),
        "poison_reason": info.poison_reason,
        "failure": None if run.failure is None else {"code": run.failure.code, "message": run.failure.message},
        "only_answers_missing": run.only_answers_missing,
        "tasks": [
            {"node": task.node, "state": task.state, "attempt": task.attempt, "due_at": _time(task.due_at)}
            for task in run.tasks
        ],
        "interrupts": [
            {
                "id": open_.id,
                "field": open_.field,
                "payload": open_.payload,
                "schema": open_.schema,
                "deadline": _time(open_.deadline),
                "default": open_.default,
            }
            for open_ in run.interrupts
        ],
        "fields": dict(run.fields),
    }


def info_table(info: RunInfo) -> Group:
    """Facts, then what is active, then the fields."""
    record = info_record(info)
    tasks, interrupts, fields = record.pop("tasks"), record.pop("interrupts"), record.pop("fields")
    parts: list[Any] = [
        _pairs(f"run {info.run_id}", {key: value for key, value in record.items() if value is not None})
    ]
    if tasks:
        parts.append(table("active", ("node", "state", "attempt", "due_at"), tasks))
    if interrupts:
        parts.append(table("open interrupts", ("id", "field", "payload", "deadline", "default"), interrupts))
    parts.append(_pairs("fields", fields))
    return Group(*parts)


def event_record(event: Event) -> dict[str, Any]:
    """One event."""
    return {
        "seq": event.seq,
        "at": _time(event.at),
        "type": event.type.value,
        "step": event.step,
        "node": event.node,
        "data": dict(event.data),
    }


def event_table(page: EventPage) -> Table:
    """One row per event; the title says if earlier ones are gone."""
    title = f"events (1 to {page.pruned} were pruned)" if page.pruned else "events"
    return table(title, ("seq", "at", "type", "step", "node", "data"), map(event_record, page.events))


def prune_record(count: PruneCount) -> dict[str, Any]:
    """What was removed, or would be."""
    return {"runs": count.runs, "events": count.events, "graph_versions": count.graphs}


def prune_table(title: str, count: PruneCount) -> Table:
    """One row per kind."""
    return _pairs(title, prune_record(count))


def pruned(count: PruneCount) -> str:
    """The same in words."""
    return f"{count.runs} runs, {count.events} events and {count.graphs} graph versions"


def _pairs(title: str, record: dict[str, Any]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in record.items():
        table.add_row(name, cell(value))
    return table


def table(title: str, columns: Sequence[str], records: Iterable[dict[str, Any]]) -> Table:
    """One row for each record, and the columns that it is to show."""
    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        width = len("2026-11-29") if _is_of_time(column) else None
        made.add_column(column, no_wrap=column in NEVER_CUT, overflow="fold", min_width=width)
    for record in records:
        made.add_row(*(cell(_in_two_words(column, record[column])) for column in columns))
    return made


def cell(value: Any, *, whole: bool = False) -> Text:
    """Plain text: neither rich's markup nor a terminal's control characters in a value mean anything."""
    if value is None:
        return Text()
    text = value if isinstance(value, str) and value.isprintable() else encode(value)
    return Text(text if whole or len(text) <= LONGEST_CELL else f"{text[:LONGEST_CELL]}... ({len(text)} characters)")


def _in_two_words(column: str, value: Any) -> Any:
    """The time of a narrow column, which then breaks between its day and its hour; anything else as it is."""
    is_time = isinstance(value, str) and _is_of_time(column)
    return value.replace("T", " ").replace("+00:00", "Z") if is_time else value


def _is_of_time(column: str) -> bool:
    return column == "at" or column.endswith("_at")


def _time(instant: datetime | None) -> str | None:
    return None if instant is None else instant.isoformat(timespec="milliseconds")
