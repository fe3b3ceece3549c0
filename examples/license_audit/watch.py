"""Follows the runs until all have ended, showing where they are; answers what waits, and lets a saboteur in once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from docket_celery.client import Client
from docket_celery.run.document import RunStatus
from docket_celery.run.views import RunSummary
from examples.license_audit import ledger
from examples.license_audit.graph import GRAPH_ID
from examples.license_audit.verdicts import Answer

_PAGE: Final = 1_000
_PAUSE: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Progressed:
    """Where the runs of this audit are. `stolen` counts the times one was taken over from a lost worker."""

    total: int
    ended: int
    waiting: int
    retrying: int
    stolen: int
    poisoned: int


def summaries(docket: Client, wanted: Sequence[str]) -> list[RunSummary]:
    """The runs of this audit, whatever else the database holds."""
    missing, found, before = set(wanted), [], None
    while missing:
        page = docket.list_runs(graph_id=GRAPH_ID, limit=_PAGE, before=before)
        found += [run for run in page.runs if run.run_id in missing]
        missing -= {run.run_id for run in page.runs}
        before = page.next_before
        if not page.has_more:
            break
    return found


def steals(entries: Sequence[Mapping[str, Any]]) -> int:
    """Runs taken over because the claim of a worker that had begun them ran out."""
    return sum(entry["runs"] for entry in entries if entry["kind"] == "stolen")


def observe(docket: Client, wanted: Sequence[str], path: Path) -> tuple[Progressed, list[RunSummary]]:
    """One look at the database and the ledger."""
    runs = summaries(docket, wanted)
    now = datetime.now(UTC)
    status = Counter(run.status for run in runs)
    looks = Progressed(
        total=len(wanted),
        ended=sum(run.status.is_terminal for run in runs),
        waiting=status[RunStatus.WAITING],
        retrying=sum(run.wake_at is not None and run.wake_at > now for run in runs),
        stolen=steals(ledger.read(path)),
        poisoned=sum(run.poisoned_at is not None for run in runs),
    )
    return looks, runs


def follow(
    docket: Client,
    wanted: Sequence[str],
    *,
    path: Path,
    console: Console,
    answer: Answer,
    interactive: bool,
    meddle: Callable[[Progressed], None],
    timeout: float,
) -> None:
    """Returns when every run has ended. Raises `TimeoutError` when they have not within `timeout` seconds.

    `meddle` is called with each look and may do to the fleet what it likes.
    """
    deadline = time.monotonic() + timeout
    columns = (
        TextColumn("[bold]audit"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("waiting {task.fields[waiting]}  retrying {task.fields[retrying]}  stolen {task.fields[stolen]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, auto_refresh=False) as progress:
        bar = progress.add_task("audit", total=len(wanted), waiting=0, retrying=0, stolen=0)
        while True:
            looks, runs = observe(docket, wanted, path)
            progress.update(
                bar, completed=looks.ended, waiting=looks.waiting, retrying=looks.retrying, stolen=looks.stolen
            )
            progress.refresh()
            if looks.ended == looks.total:
                return
            if looks.poisoned:
                raise RuntimeError(
                    f"{looks.poisoned} runs are poisoned: see `celery docket show` and the workers' logs"
                )
            if time.monotonic() >= deadline:
                raise TimeoutError(
                    f"{looks.total - looks.ended} of {looks.total} runs had not ended after {timeout:g} s"
                )
            meddle(looks)
            waiting = [run.run_id for run in runs if run.status is RunStatus.WAITING]
            if waiting and interactive:
                asked = time.monotonic()
                progress.stop()  # The terminal is needed for the questions.
                resolve(docket, waiting, answer)
                progress.start()
                deadline += time.monotonic() - asked
            else:
                resolve(docket, waiting, answer)
            time.sleep(_PAUSE)


def resolve(docket: Client, waiting: Sequence[str], answer: Answer) -> None:
    """Answers every open question of these runs."""
    for run_id in waiting:
        for interrupt in docket.inspect_run(run_id).run.interrupts:
            docket.resolve_interrupt(run_id, interrupt.id, answer(interrupt.payload))
