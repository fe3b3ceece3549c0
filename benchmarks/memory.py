"""What a worker's memory grows by over many runs.

    python -m benchmarks.memory [--runs 10000] [--json FILE]

Two workers with one process each drain one-node runs. Their resident memory after a warm-up of 500 runs is compared
with that after `--runs` more.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.app import make_app
from benchmarks.command import conclude, parser
from benchmarks.throughput import fleet, start_fleet
from docket_celery import Docket
from docket_celery.embedded.postgres import EmbeddedPostgres
from docket_celery.embedded.process import Child
from docket_celery.embedded.redis import EmbeddedRedis
from docket_celery.storage.postgres import migrate

WARM_UP = 500
RUNS = 10_000


def measure(warm_up: int, runs: int) -> list[dict[str, Any]]:
    """MiB of each worker after the warm-up, after all runs, and the difference."""
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
            *workers, beat = start_fleet(directory, url, redis.url())
            try:
                fleet(docket, url, warm_up)
                before = [resident(worker) for worker in workers]
                fleet(docket, url, runs)
                after = [resident(worker) for worker in workers]
            finally:
                for child in (*workers, beat):
                    child.stop()
    return [
        {"worker": worker.name, "runs": runs, "before_mib": b, "after_mib": a, "grown_mib": round(a - b, 1)}
        for worker, b, a in zip(workers, before, after, strict=True)
    ]


def resident(child: Child) -> float:
    """MiB that a process has in memory."""
    status = Path(f"/proc/{child.pid}/status").read_text(encoding="utf-8")
    (line,) = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    return round(int(line.split()[1]) / 1024, 1)


def report(rows: list[dict[str, Any]]) -> None:
    """Prints the figures as a table."""
    table = Table("worker", "MiB after the warm-up", "after all runs", "grown by", title="memory of a worker")
    for row in rows:
        table.add_row(row["worker"], f"{row['before_mib']}", f"{row['after_mib']}", f"{row['grown_mib']}")
    Console().print(table)


def main() -> None:
    """Measures, prints a table, and writes the JSON file if asked to."""
    arguments = parser(__doc__)
    arguments.add_argument("--runs", type=int, default=RUNS)
    options = arguments.parse_args()
    conclude(measure(WARM_UP, options.runs), report, options.json)


if __name__ == "__main__":
    main()
