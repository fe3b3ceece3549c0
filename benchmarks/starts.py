"""Starting runs one by one and in bulk, on a PostgreSQL of one's own: `python -m benchmarks.starts [--runs N]`."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable

from docket_celery import START, Graph
from docket_celery.client import TenantClient
from docket_celery.config import Config
from docket_celery.embedded.postgres import EmbeddedPostgres
from docket_celery.engine import build
from docket_celery.storage.postgres import migrate, open_storage


def node(n: int) -> None:
    """A node, never executed here."""


GRAPH = Graph("starts").input("n", int).input("note", str).node("a", node).edge(START, "a")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    compare(parser.parse_args().runs)


def compare(count: int) -> None:
    """Starts `count` runs in each of the ways."""
    with tempfile.TemporaryDirectory() as directory, EmbeddedPostgres.start(directory) as server:
        url = server.create_database("starts")
        migrate.upgrade(url, "docket")
        docket = TenantClient(build(Config(), open_storage(url), lambda name: node, pause=time.sleep))
        ref = docket.save_graph(GRAPH)
        inputs = [{"n": n, "note": "x" * 200} for n in range(count)]
        keys = [f"key-{n}" for n in range(count)]
        measure("one by one", count, lambda: [docket.start_run(ref, input) for input in inputs])
        measure("in bulk", count, lambda: docket.start_runs(ref, inputs))
        measure("in bulk, with keys", count, lambda: docket.start_runs(ref, inputs, keys=keys))
        measure("the same keys again", count, lambda: docket.start_runs(ref, inputs, keys=keys))
        docket.storage.runs._database.sessions.close()  # type: ignore[attr-defined]


def measure(what: str, count: int, start: Callable[[], object]) -> None:
    """Prints how long `start` takes to start `count` runs."""
    began = time.perf_counter()
    start()
    elapsed = time.perf_counter() - began
    print(f"{what:22} {elapsed:7.2f} s {count / elapsed:9,.0f} runs/s")


if __name__ == "__main__":
    main()
