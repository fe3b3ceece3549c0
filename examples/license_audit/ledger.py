"""What the processes of the fleet saw: an append-only file of JSON lines, outside every transaction.

The database says what was committed, the ledger what was really executed; only together do they show that a killed
worker cost an execution and nothing else. Each line is one short write in append mode, so writers need no lock and a
killed one leaves at most an unfinished last line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from docket_celery import NodeContext
from docket_celery.telemetry.hook import DrainFinished, Fact, LeaseRefused, LeasesGranted

VARIABLE: Final = "LICENSE_AUDIT_LEDGER"
"""Environment variable with the file's path; without it nothing is written."""


def write(entry: dict[str, Any]) -> None:
    """Appends one entry, with this process's id."""
    path = os.environ.get(VARIABLE)
    if path:
        line = json.dumps({**entry, "pid": os.getpid()}, separators=(",", ":")) + "\n"
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)


@contextmanager
def execution(ctx: NodeContext, *, answered: bool = False) -> Iterator[None]:
    """Writes down that an attempt begins, and that it ended, with an error or without.

    A node that has asked is called a second time when it is `answered`: that is no repetition.
    """
    key = f"{ctx.idempotency_key} answered" if answered else ctx.idempotency_key
    entry = {"run": ctx.run_id, "node": ctx.node, "attempt": ctx.attempt, "key": key}
    write({"kind": "begin", **entry})
    try:
        yield
    finally:
        write({"kind": "end", **entry})


def note(fact: Fact) -> None:
    """A telemetry hook: keeps how many runs were taken over, and which leases and results came too late."""
    if isinstance(fact, LeasesGranted) and fact.stolen:
        write({"kind": "stolen", "runs": fact.stolen})
    elif isinstance(fact, LeaseRefused):
        write({"kind": "refused", "run": fact.run_id, "reason": fact.reason})
    elif isinstance(fact, DrainFinished) and fact.outcome == "discarded":
        write({"kind": "refused", "run": fact.run_id, "reason": fact.detail})


def read(path: Path) -> list[dict[str, Any]]:
    """Every complete entry, in the order written."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
