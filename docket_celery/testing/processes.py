"""Celery's programs as children of a test: how a worker is started, and what its command line is.

Never imports Celery: the programs do, each in its own process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from docket_celery.embedded.process import Child


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """One worker of an app, in the words of `celery worker`.

    app        what `celery -A` takes
    name       the first part of the node's name, and the name of its log; each worker of a test has its own
    queues     as for `-Q`; the first one is what pytest-celery calls the worker's queue
    arguments  more of the command line, such as `("--without-gossip",)`
    env        more of the environment; the rest is the test's own
    cwd        where it runs; otherwise where the test does
    """

    app: str
    name: str = "worker"
    queues: str = "celery"
    pool: str = "prefork"
    concurrency: int = 2
    log_level: str = "INFO"
    arguments: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None

    def command(self, node: str) -> list[str]:
        """What follows `celery -A APP` for a node of this name."""
        chosen = {"-n": node, "-Q": self.queues, "-P": self.pool, "-c": str(self.concurrency), "-l": self.log_level}
        return ["worker", *(part for option in chosen.items() for part in option), *self.arguments]


def start_celery(
    app: str, *arguments: str, log: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Child:
    """Starts `celery -A app ...` with this Python. What the test can import, the program can import."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **(env or {})}
    command = [sys.executable, "-m", "celery", "-A", app, *arguments]
    return Child.start(command, name=log.stem, log=log, env=environment, cwd=cwd)
