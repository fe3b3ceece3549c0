"""Kills a worker at the worst moment: while one of its processes is inside a node."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any, Final

from docket_celery.embedded.process import Child
from examples.license_audit import ledger
from examples.license_audit.fleet import Fleet

_SETTLE: Final = 0.01
"""Seconds after which a stopped process has surely come to rest."""


def kill_inside_a_node(fleet: Fleet) -> dict[str, Any] | None:
    """Kills one worker that is executing a node now, and returns the ledger's entry of that execution.

    Each worker in turn is frozen, so that the ledger cannot change under the question, and thawed again when it is
    not inside a node. None when no worker was; ask again.
    """
    for worker in list(fleet.workers):
        worker.signal_group(signal.SIGSTOP)
        time.sleep(_SETTLE)
        caught = _executing(fleet.ledger, worker)
        if caught is not None:
            fleet.remove(worker)
            return {**caught, "worker": worker.name, "worker_pid": worker.pid}
        worker.signal_group(signal.SIGCONT)
    return None


def _executing(path: Path, worker: Child) -> dict[str, Any] | None:
    """The last execution that a process of this worker began and did not end."""
    begun: dict[tuple[int, str], dict[str, Any]] = {}
    for entry in ledger.read(path):
        if entry["kind"] == "begin":
            begun[entry["pid"], entry["key"]] = entry
        elif entry["kind"] == "end":
            begun.pop((entry["pid"], entry["key"]), None)
    return next((entry for (pid, _), entry in begun.items() if _group(pid) == worker.pid), None)


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None
