"""The app of plain Celery: Redis as broker, and as result backend for chords alone."""

from __future__ import annotations

import os
from pathlib import Path

from celery import Celery
from celery.signals import worker_init

from benchmarks.peers.tally import Tally

BROKER, DIRECTORY = "PEERS_BROKER", "PEERS_DIRECTORY"

tally = Tally(Path(os.environ.get(DIRECTORY, ".")))
app = Celery("peers", broker=os.environ.get(BROKER), backend=os.environ.get(BROKER, "").removesuffix("/0") + "/1")
app.conf.broker_connection_retry_on_startup = True
app.conf.worker_prefetch_multiplier = 4
app.conf.result_expires = 3600


@app.task(name="peers.no_op", ignore_result=True)  # type: ignore[untyped-decorator]
def no_op(n: int, step: int) -> None:
    """Says that it was here."""
    tally.note(n, step)


@app.task(name="peers.part")  # type: ignore[untyped-decorator]
def part(n: int, step: int) -> int:
    """One branch of the fan."""
    tally.note(n, step)
    return step


@app.task(name="peers.join", ignore_result=True)  # type: ignore[untyped-decorator]
def join(parts: list[int], n: int, step: int) -> None:
    """What all the branches gave."""
    assert sum(parts) == sum(range(step)), parts
    tally.note(n, step)


@worker_init.connect  # type: ignore[untyped-decorator]
def _wait_for_the_others(**_: object) -> None:
    from benchmarks.peers.engine import go

    go(Path(os.environ[DIRECTORY]))
