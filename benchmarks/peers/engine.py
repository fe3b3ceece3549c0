"""One engine on one workload: the same procedure, clock and checks for all of them.

    python -m benchmarks.peers.engines.NAME WORKLOAD --database URL --broker URL --directory DIR [--size quick]

Runs are started first, outside the clock. Then either this process carries them on, or worker processes do: they start
up, wait for one another, and go. Writes `result.json` into the directory, or ends with the reason why there is none.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import psycopg

from benchmarks.peers.tally import Tally
from benchmarks.peers.workloads import FIELD, Workload, workloads

PATIENCE = 300.0
"""Seconds after which a workload that has not ended has failed."""
SLICES = 2
"""How often runs with and without the megabyte take turns."""
_EDGE = 50
"""Steps at either end of a long run whose speeds are compared."""
_POLL = 0.005
_TABLES = """
    SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class
    WHERE relkind = 'r' AND relnamespace::regnamespace::text NOT IN ('pg_catalog', 'information_schema')
"""


class Engine:
    """What an engine must be able to do. All sees the same object, but a worker process, which has one of its own."""

    name: ClassVar[str]
    in_process: ClassVar[bool] = True
    """Whether a workload of one worker is carried on by `work`, in this process."""

    def __init__(self, *, workload: Workload, database: str, broker: str, directory: Path) -> None:
        self.workload = workload
        self.database = database
        self.broker = broker
        self.directory = directory
        self.tally = Tally(directory)

    def prepare(self) -> None:
        """Makes its schema and whatever it keeps for good."""
        raise NotImplementedError

    def start(self, runs: range, field: str | None) -> None:
        """Starts these runs durably, `field` in the state of each, and executes none of them."""
        raise NotImplementedError

    def work(self, runs: range) -> None:
        """Carries these runs on, in this process, until they have ended."""
        raise NotImplementedError

    def serve(self, index: int) -> None:
        """The body of a worker process: calls `go()` when it is ready, and then works until it is ended."""
        raise NotImplementedError

    def workers(self) -> list[list[str]]:
        """The commands of the worker processes."""
        own = [sys.executable, *sys.orig_argv[1:]]
        return [[*own, "--worker", str(index)] for index in range(self.workload.workers)]

    def others(self) -> list[list[str]]:
        """The commands of processes beside the workers that carry no run on."""
        return []

    def environment(self) -> dict[str, str]:
        """What these processes find in their environment beside this one's."""
        return {}

    def finished(self) -> int:
        """How many runs have durably ended well."""
        raise NotImplementedError

    def check(self, runs: range) -> None:
        """Raises when a result of these runs is not what it must be."""

    def close(self) -> None:
        """Ends what `prepare` has opened."""

    def go(self) -> None:
        """Says that this worker is ready, and waits for all the others."""
        go(self.directory)

    def measure(self) -> dict[str, Any]:
        """The figures of this workload."""
        with psycopg.connect(self.database, autocommit=True) as connection:
            self.prepare()
            try:
                if self.workload.workers == 1 and self.in_process:
                    return self._in_process(connection)
                return self._in_fleet(connection)
            finally:
                self.close()

    def _in_process(self, connection: psycopg.Connection) -> dict[str, Any]:
        count = self.workload.runs
        warm = range(1 if self.workload.shape == "append" else 2)
        self.start(warm, None)
        self.work(warm)
        following = warm.stop
        taken: dict[str | None, list[dict[str, float]]] = {}
        for field in self._fields():
            runs = range(following, following + max(count // SLICES if self.workload.beside else count, 1))
            following = runs.stop
            self.start(runs, field)
            before, began = _written(connection), time.perf_counter()
            self.work(runs)
            seconds, after = time.perf_counter() - began, _written(connection)
            self.check(runs)
            taken.setdefault(field and "beside", []).append(_cost(self.workload, runs, seconds, before, after))
        assert self.finished() == following, f"{self.finished()} of {following} runs have ended well"
        self.tally.verify(range(following), self.workload.steps)
        figures = _mean(taken[None])
        if self.workload.beside:
            beside = _mean(taken["beside"])
            figures = {**beside, "plain": figures, "of_plain": beside["per_second"] / figures["per_second"]}
        if self.workload.shape == "append":
            figures["last_over_first"] = self._last_over_first(warm.stop, following)
        return figures

    def _fields(self) -> list[str | None]:
        return [None, FIELD] * SLICES if self.workload.beside else [None]

    def _last_over_first(self, first: int, end: int) -> float:
        """Speed of the last steps of a run over that of its first ones."""
        rows = self.tally.read()
        ratios = []
        for number in range(first, end):
            at = [instant for instant, run, _ in rows if run == number]
            ratios.append((at[_EDGE - 1] - at[0]) / (at[-1] - at[-_EDGE]))
        return statistics.median(ratios)

    def _in_fleet(self, connection: psycopg.Connection) -> dict[str, Any]:
        runs = range(self.workload.runs)
        self.start(runs, None)
        with Fleet(self) as fleet:
            before = _written(connection)
            fleet.release()
            fleet.until(lambda: self.tally.count() >= len(runs) * self.workload.steps)
            fleet.until(lambda: self.finished() >= len(runs))
            ended, after = time.time(), _written(connection)
        self.check(runs)
        self.tally.verify(runs, self.workload.steps)
        rows = self.tally.read()
        began = rows[0][0]
        last = {run: instant - began for instant, run, _ in rows}  # Sorted: a run's last body stays.
        spans = sorted(last.values())
        quantiles = {f"p{share}": spans[min(len(spans) * share // 100, len(spans) - 1)] for share in (50, 95, 99)}
        return {**_cost(self.workload, runs, ended - began, before, after), **quantiles}


class Fleet:
    """The worker processes of one sample, and what runs beside them; all of them are ended with it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._children: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Fleet:
        environment = {**os.environ, **self._engine.environment()}
        for number, command in enumerate([*self._engine.workers(), *self._engine.others()]):
            with (self._engine.directory / f"process-{number}.log").open("wb") as log:
                child = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
            self._children.append(child)
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            child.kill()  # All is written: an orderly stop would only take time.
        for child in self._children:
            child.wait()

    def release(self) -> None:
        """Waits until every worker is ready, and lets them go at once."""
        self.until(lambda: len(list(self._engine.directory.glob("*.ready"))) >= len(self._engine.workers()))
        (self._engine.directory / "go").touch()

    def until(self, fact: Any) -> None:
        """Waits for it; raises when a process has ended or it takes too long."""
        deadline = time.monotonic() + PATIENCE
        while not fact():
            ended = [child for child in self._children if child.poll() is not None]
            if ended or time.monotonic() > deadline:
                raise RuntimeError(f"{ended or 'too slow'}: {self._logs()}")
            time.sleep(_POLL)

    def _logs(self) -> str:
        logs = sorted(self._engine.directory.glob("process-*.log"))
        return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-3_000:]}" for log in logs)


def go(directory: Path) -> None:
    """Says that this process is ready, and waits until all are."""
    (directory / f"{os.getpid()}.ready").touch()
    while not (directory / "go").exists():
        time.sleep(0.002)


def _written(connection: psycopg.Connection) -> tuple[int, int]:
    """Bytes of log inserted so far, and bytes of all tables with their indexes."""
    log = connection.execute("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint").fetchone()
    tables = connection.execute(_TABLES).fetchone()
    assert log is not None
    assert tables is not None
    return int(log[0]), int(tables[0])


def _cost(
    workload: Workload, runs: Sequence[int], seconds: float, before: tuple[int, int], after: tuple[int, int]
) -> dict[str, float]:
    steps = len(runs) * workload.steps
    log, tables = (later - earlier for earlier, later in zip(before, after, strict=True))
    return {
        "per_second": len(runs) * workload.per_run / seconds,
        "seconds": seconds,
        "wal_per_step": log / steps,
        "wal_per_run": log / len(runs),
        "table_bytes_per_step": tables / steps,
    }


def _mean(samples: list[dict[str, float]]) -> dict[str, Any]:
    return {key: statistics.fmean(sample[key] for sample in samples) for key in samples[0]}


def main(engine: type[Engine]) -> None:
    """Runs the workload of the command line on this engine, or one worker of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload")
    parser.add_argument("--database", required=True)
    parser.add_argument("--broker", required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--size", choices=("full", "quick", "smallest"), default="quick")
    parser.add_argument("--worker", type=int, default=None)
    options = parser.parse_args()
    chosen = engine(
        workload=workloads(options.size)[options.workload],
        database=options.database,
        broker=options.broker,
        directory=options.directory,
    )
    if options.worker is not None:
        chosen.serve(options.worker)
    else:
        (options.directory / "result.json").write_text(json.dumps(chosen.measure()), encoding="utf-8")
