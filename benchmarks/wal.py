"""What a step writes: bytes of write-ahead log per step, and how the speed of a run follows from its state.

    python -m benchmarks.wal [--quick] [--json FILE]

Starts an embedded PostgreSQL (fsync on) of its own, with statistics of statements. The log's bytes are those of the
statements that the store sends (`pg_stat_statements.wal_bytes`), so that background writing does not blur them. One run
of each kind goes ahead, so that statements are prepared and most full pages of a fresh checkpoint are written.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from rich.console import Console
from rich.table import Table

from benchmarks.app import chain, make_app
from benchmarks.command import conclude, parser
from docket_celery import FINISH, START, Docket, Graph, node
from docket_celery.embedded.postgres import EmbeddedPostgres
from docket_celery.storage.postgres import migrate

SETTINGS = {"shared_preload_libraries": "pg_stat_statements"}
MEGABYTE = "x" * 1_000_000
KILOBYTE = "y" * 1_000
APPENDS = 200
_LONG = 100
"""Events from which on a run has quarters worth comparing."""


@node(name="benchmark.append_1_kb")
def append_1_kb() -> dict[str, str]:
    """One kilobyte more in the log."""
    return {"log": KILOBYTE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One drain: its steps, seconds, bytes of log, and of a long run the speed of its last quarter over its first."""

    steps: int
    seconds: float
    wal_bytes: int
    last_over_first: float | None


def beside_a_megabyte(graph: Graph) -> Graph:
    """The same graph with an input that no node reads."""
    return Graph.from_dict({**graph.to_dict(), "id": f"{graph.id}-beside-1mb"}).input("blob", str)


def appending(count: int) -> Graph:
    """A loop that appends one kilobyte per step, `count` times."""
    return (
        Graph("appending", max_supersteps=count)
        .field("log", list[str], reducer="append")
        .node("append", append_1_kb)
        .edge(START, "append")
        .edge("append", "append", when=f"size(log) < {count}")
        .edge("append", FINISH, when=f"size(log) >= {count}")
    )


def drained(docket: Docket, connection: psycopg.Connection, graph: Graph, values: dict[str, Any], runs: int) -> Sample:
    """Starts `runs` runs and drains them in this process; every one must be done."""
    ref = docket.save_graph(graph)
    started = [docket.start_run(ref, values) for _ in range(runs)]
    connection.execute("SELECT pg_stat_statements_reset()")
    began = time.perf_counter()
    docket.drain()
    seconds = time.perf_counter() - began
    row = connection.execute("SELECT sum(wal_bytes) FROM pg_stat_statements WHERE toplevel").fetchone()
    assert row is not None
    ended = [docket.fetch_run(run.id) for run in started]
    assert all(run.status == "done" for run in ended), ended
    steps = sum(run.checkpoint_seq - 1 for run in ended)
    return Sample(
        steps=steps,
        seconds=seconds,
        wal_bytes=int(row[0]),
        last_over_first=_last_over_first(connection, started[-1].id),
    )


def _last_over_first(connection: psycopg.Connection, run_id: str) -> float | None:
    rows = connection.execute("SELECT at FROM docket.run_events WHERE run_id = %s ORDER BY seq", [run_id]).fetchall()
    if len(rows) < _LONG:
        return None
    instants = [at.timestamp() for (at,) in rows]
    quarter = len(instants) // 4
    return (instants[quarter] - instants[0]) / (instants[-1] - instants[-1 - quarter])


def measure(rounds: int, runs: int) -> list[dict[str, Any]]:
    """All workloads, interleaved round by round; medians."""
    plain = chain(10)
    workloads: dict[str, tuple[Graph, dict[str, Any], int]] = {
        "one node": (chain(1), {}, runs * 10),
        "10-node chain": (plain, {}, runs),
        "10-node chain beside 1 MB": (beside_a_megabyte(plain), {"blob": MEGABYTE}, runs),
        "100-node chain": (chain(100), {}, max(runs // 10, 1)),
        f"append 1 KB x {APPENDS}": (appending(APPENDS), {}, 1),
    }
    samples: dict[str, list[Sample]] = {name: [] for name in workloads}
    with (
        tempfile.TemporaryDirectory(prefix="docket-benchmark-") as home,
        EmbeddedPostgres.start(Path(home), settings=SETTINGS) as server,
    ):
        url = server.create_database("wal")
        migrate.upgrade(url, "docket")
        docket = Docket.of(make_app(url, "memory://"))
        assert docket is not None
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION pg_stat_statements")
            connection.execute("CHECKPOINT")
            for graph, values, _ in workloads.values():
                drained(docket, connection, graph, values, 1)
            for _ in range(rounds):
                for name, (graph, values, count) in workloads.items():
                    samples[name].append(drained(docket, connection, graph, values, count))
        docket.storage.runs._database.sessions.close()
    return [_row(name, taken) for name, taken in samples.items()]


def _row(name: str, samples: list[Sample]) -> dict[str, Any]:
    long = [sample.last_over_first for sample in samples if sample.last_over_first is not None]
    return {
        "workload": name,
        "steps_per_second": round(statistics.median(sample.steps / sample.seconds for sample in samples), 1),
        "wal_bytes_per_step": round(statistics.median(sample.wal_bytes / sample.steps for sample in samples)),
        "wal_bytes": round(statistics.median(sample.wal_bytes for sample in samples)),
        "last_quarter_over_first": round(statistics.median(long), 2) if long else None,
        "samples": len(samples),
    }


def report(rows: list[dict[str, Any]]) -> None:
    """Prints the figures as a table."""
    table = Table("workload", "steps/s", "WAL bytes/step", "WAL bytes in all", "last / first quarter", title="wal")
    for row in rows:
        table.add_row(
            row["workload"],
            f"{row['steps_per_second']:,}",
            f"{row['wal_bytes_per_step']:,}",
            f"{row['wal_bytes']:,}",
            "" if row["last_quarter_over_first"] is None else str(row["last_quarter_over_first"]),
        )
    Console(width=120).print(table)


def main() -> None:
    """Measures, prints a table, and writes the JSON file if asked to."""
    arguments = parser(__doc__)
    arguments.add_argument("--quick", action="store_true", help="one round of few runs")
    options = arguments.parse_args()
    conclude(measure(*((1, 10) if options.quick else (3, 50))), report, options.json)


if __name__ == "__main__":
    main()
