"""Steps per second of one vehicle, and runs per second of a small fleet, each beside the floor in the same run.

    python -m benchmarks.throughput [--rounds 3] [--runs 2000] [--json FILE]

Starts an embedded PostgreSQL (fsync on) and Redis of its own. Rounds are interleaved with the floor; medians are
reported. Every figure is checked: all runs done, every event numbered.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
from rich.console import Console
from rich.table import Table

from benchmarks import floor
from benchmarks.app import BROKER, DATABASE, chain, make_app
from benchmarks.command import conclude, parser
from docket_celery import Docket
from docket_celery.embedded.postgres import EmbeddedPostgres
from docket_celery.embedded.process import Child
from docket_celery.embedded.redis import EmbeddedRedis
from docket_celery.storage.postgres import migrate

CHAIN = 100


def one_vehicle(docket: Docket) -> float:
    """Steps per second of a 100-node chain drained in this process."""
    run = docket.start_run(docket.save_graph(chain(CHAIN)))
    began = time.perf_counter()
    docket.drain()
    elapsed = time.perf_counter() - began
    done = docket.fetch_run(run.id)
    assert done.status == "done", done
    assert done.checkpoint_seq == CHAIN + 1, done
    return CHAIN / elapsed


def fleet(docket: Docket, database_url: str, runs: int) -> float:
    """Runs per second of one-node runs that were started in bulk, from the start to the last completion."""
    ref = docket.save_graph(chain(1))
    with psycopg.connect(database_url, autocommit=True) as connection:
        started = [run.id for run in docket.start_runs(ref, [{}] * runs)]
        count = "SELECT count(*) FROM docket.runs WHERE id = ANY (%s) AND status = 'done'"
        while connection.execute(count, (started,)).fetchone() != (runs,):
            time.sleep(0.05)
        span = "SELECT extract(epoch FROM max(finished_at) - min(started_at)) FROM docket.runs WHERE id = ANY (%s)"
        row = connection.execute(span, (started,)).fetchone()
        assert row is not None
        return runs / float(row[0])


def measure(rounds: int, runs: int) -> list[dict[str, Any]]:
    """All figures, interleaved round by round."""
    with tempfile.TemporaryDirectory(prefix="docket-benchmark-") as home:
        directory = Path(home)
        with (
            EmbeddedPostgres.start(directory / "postgres") as postgres,
            EmbeddedRedis.start(directory / "redis") as redis,
        ):
            url = postgres.create_database("benchmark")
            migrate.upgrade(url, "docket")
            docket = Docket.of(make_app(url, redis.url()))
            assert docket is not None
            samples: dict[str, list[float]] = {}
            for _ in range(rounds):
                _add(samples, "floor, steps/s", lambda: floor.steps_per_second(url, 1_000))
                _add(samples, "one vehicle, 100-node chain, steps/s", lambda: one_vehicle(docket))
            children = start_fleet(directory, url, redis.url())
            try:
                for _ in range(rounds):
                    _add(samples, "floor, runs/s", lambda: floor.runs_per_second(url, runs))
                    _add(samples, "beat + 2 workers, one-node runs/s", lambda: fleet(docket, url, runs))
            finally:
                for child in children:
                    child.stop()
    return [_row(name, samples, floor_name) for name, floor_name in FIGURES]


FIGURES = [
    ("floor, steps/s", "floor, steps/s"),
    ("one vehicle, 100-node chain, steps/s", "floor, steps/s"),
    ("floor, runs/s", "floor, runs/s"),
    ("beat + 2 workers, one-node runs/s", "floor, runs/s"),
]


def _add(samples: dict[str, list[float]], name: str, sample: Callable[[], float]) -> None:
    samples.setdefault(name, []).append(sample())


def _row(name: str, samples: dict[str, list[float]], floor_name: str) -> dict[str, Any]:
    median = statistics.median(samples[name])
    return {
        "figure": name,
        "median": round(median, 1),
        "of_floor": round(median / statistics.median(samples[floor_name]), 3),
        "samples": [round(sample, 1) for sample in samples[name]],
    }


def start_fleet(directory: Path, database_url: str, broker_url: str) -> list[Child]:
    """Two solo workers and beat, so that exactly two processes run vehicles."""
    environment = {**os.environ, DATABASE: database_url, BROKER: broker_url}
    celery = [sys.executable, "-m", "celery", "-A", "benchmarks.app"]
    commands = {
        "w1": [*celery, "worker", "-Q", "docket", "-n", "w1@benchmark", "-P", "solo", "-l", "WARNING"],
        "w2": [*celery, "worker", "-Q", "docket", "-n", "w2@benchmark", "-P", "solo", "-l", "WARNING"],
        "beat": [*celery, "beat", "-s", str(directory / "schedule"), "-l", "WARNING"],
    }
    return [
        Child.start(command, name=name, log=directory / f"{name}.log", env=environment)
        for name, command in commands.items()
    ]


def main() -> None:
    """Measures, prints a table, and writes the JSON file if asked to."""
    arguments = parser(__doc__)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--runs", type=int, default=2_000)
    options = arguments.parse_args()
    conclude(measure(options.rounds, options.runs), report, options.json)


def report(rows: list[dict[str, Any]]) -> None:
    """Prints the figures as a table."""
    table = Table("figure", "median", "of floor", "samples", title="throughput")
    for row in rows:
        table.add_row(
            row["figure"], f"{row['median']:,}", f"{row['of_floor']:.0%}", ", ".join(map(str, row["samples"]))
        )
    Console().print(table)


if __name__ == "__main__":
    main()
