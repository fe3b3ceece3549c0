"""Every engine on every workload it has, in turns: a round of them all, then the next, each in a fresh database."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import redis

from benchmarks.peers.workloads import Size, Workload
from docket_celery.embedded.postgres import EmbeddedPostgres
from docket_celery.embedded.redis import EmbeddedRedis

ROOT = Path(__file__).parents[2]
SETTINGS = {"shared_buffers": "256MB", "max_wal_size": "4GB", "checkpoint_timeout": "30min"}
"""So that no checkpoint falls into a sample. All else is PostgreSQL's default, `fsync` and `synchronous_commit` too."""
SHOWN = ("server_version", "fsync", "synchronous_commit", "wal_level", "full_page_writes", *SETTINGS)
_LONGEST = 900.0
"""Seconds after which a sample is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """An engine: its script, in which environment it runs, and what it takes part in.

    kind    "floor", "ours", "durable" (keeps the steps of a workflow), "queue" (keeps jobs) or "volatile"
    """

    name: str
    title: str
    kind: str
    workloads: tuple[str, ...]

    @property
    def own(self) -> bool:
        """Whether it runs in this project's environment rather than in the peers'."""
        return self.kind in ("floor", "ours", "volatile")


_STEPS = ("chain100", "chains10", "drain", "fan")
_ALL = (*_STEPS, "append", "beside")
CONTESTANTS = {
    contestant.name: contestant
    for contestant in (
        Contestant(name="floor", title="floor: bare statement", kind="floor", workloads=_STEPS),
        Contestant(name="docket", title="docket_celery", kind="ours", workloads=_ALL),
        Contestant(
            name="docket_gevent",
            title="docket_celery, 32 at a time (gevent)",
            kind="ours",
            workloads=("chains10", "drain", "fan"),
        ),
        Contestant(name="docket_broker", title="docket_celery, a message per run", kind="ours", workloads=("drain",)),
        Contestant(
            name="docket_broker_gevent",
            title="docket_celery, a message per run, 32 at a time (gevent)",
            kind="ours",
            workloads=("drain",),
        ),
        Contestant(name="wake", title="docket_celery", kind="ours", workloads=("wake",)),
        Contestant(name="langgraph", title="LangGraph", kind="durable", workloads=_ALL),
        Contestant(name="dbos", title="DBOS", kind="durable", workloads=_ALL),
        Contestant(name="absurd", title="Absurd", kind="durable", workloads=_ALL),
        Contestant(name="procrastinate", title="procrastinate", kind="queue", workloads=("drain",)),
        Contestant(name="pgqueuer", title="pgqueuer", kind="queue", workloads=("drain",)),
        Contestant(name="celery", title="Celery, nothing durable", kind="volatile", workloads=_STEPS),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """The one PostgreSQL and the one Redis of all engines."""

    postgres: EmbeddedPostgres
    redis: EmbeddedRedis

    def settings(self) -> dict[str, str]:
        """What the figures depend on, as the servers themselves tell it."""
        with psycopg.connect(self.postgres.url("postgres"), autocommit=True) as connection:
            rows = [connection.execute(f"SHOW {name}".encode()).fetchone() for name in SHOWN]
        told = {name: str(row[0]) for name, row in zip(SHOWN, rows, strict=True) if row is not None}
        with redis.Redis.from_url(self.redis.url()) as client:
            return {**told, "redis_version": client.info("server")["redis_version"]}

    @contextmanager
    def fresh(self, name: str) -> Iterator[str]:
        """An empty database in a checkpointed server, and an empty broker."""
        with psycopg.connect(self.postgres.url("postgres"), autocommit=True) as connection:
            with redis.Redis.from_url(self.redis.url()) as client:
                client.flushall()
            url = self.postgres.create_database(name)
            connection.execute("CHECKPOINT")
            try:
                yield url
            finally:
                connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())


@contextmanager
def servers() -> Iterator[Servers]:
    """Both, for as long as the context lasts."""
    with tempfile.TemporaryDirectory(prefix="docket-peers-") as home:
        directory = Path(home)
        with (
            EmbeddedPostgres.start(directory / "postgres", settings=SETTINGS) as postgres,
            EmbeddedRedis.start(directory / "redis") as broker,
        ):
            yield Servers(postgres=postgres, redis=broker)


Samples = dict[tuple[str, str], list[dict[str, Any]]]


def hold(
    running: Servers, works: Sequence[Workload], names: Sequence[str], *, rounds: int, size: Size, peers: Path | None
) -> Samples:
    """All samples by workload and engine. Raises for the first one that fails."""
    samples: Samples = {}
    for number in range(rounds):
        for work in works:
            for name in names:
                contestant = CONTESTANTS[name]
                if work.name in contestant.workloads:
                    print(f"round {number + 1} of {rounds}: {work.name}, {name}", end="", file=sys.stderr, flush=True)
                    began = time.monotonic()
                    sample = _sample(running, contestant, work, size, peers)
                    print(f": {time.monotonic() - began:.1f} s in all", file=sys.stderr, flush=True)
                    samples.setdefault((work.name, name), []).append(sample)
    return samples


def _sample(running: Servers, contestant: Contestant, work: Workload, size: Size, peers: Path | None) -> dict[str, Any]:
    python = Path(sys.executable) if contestant.own else peers
    assert python is not None
    with (
        tempfile.TemporaryDirectory(prefix="docket-peers-") as home,
        running.fresh(f"{work.name}_{contestant.name}") as database,
    ):
        directory = Path(home)
        module = f"benchmarks.peers.engines.{contestant.name}"
        command = [os.fspath(python), "-m", module, work.name, "--database", database]
        command += ["--broker", running.redis.url(), "--directory", home, "--size", size]
        log = directory / "engine.log"
        with log.open("wb") as output:
            child = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output, start_new_session=True)
            try:
                code = child.wait(_LONGEST)
            finally:
                _sweep(child)
        if code != 0:
            raise RuntimeError(f"{contestant.name} on {work.name}:\n{log.read_text(errors='replace')[-6_000:]}")
        return json.loads((directory / "result.json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def _sweep(child: subprocess.Popen[bytes]) -> None:
    """Ends the engine and all it has started, however it ended itself."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    child.wait()


def medians(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The median of each figure, also of those within a figure."""
    first = samples[0]
    return {
        key: medians([sample[key] for sample in samples])
        if isinstance(value, Mapping)
        else statistics.median(sample[key] for sample in samples)
        for key, value in first.items()
    }
