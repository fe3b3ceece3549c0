"""The Celery app that the benchmarks drive, configured from the environment."""

from __future__ import annotations

import os

from celery import Celery

from docket_celery import FINISH, START, Docket, Graph, node

DATABASE = "BENCHMARK_DATABASE_URL"
BROKER = "BENCHMARK_BROKER_URL"


def make_app(database_url: str, broker_url: str) -> Celery:
    """An app with default options but a prefetch of one, as recommended."""
    app = Celery("benchmark", broker=broker_url, include=["benchmarks.app"])
    app.conf.broker_connection_retry_on_startup = True
    app.conf.worker_prefetch_multiplier = 1
    app.conf.docket_database_url = database_url
    Docket(app)
    return app


@node(name="benchmark.no_op")
def no_op() -> None:
    """Does nothing: what remains is the engine."""


def chain(length: int) -> Graph:
    """`length` no-op nodes in a line."""
    names = [f"n{number:03}" for number in range(1, length + 1)]
    graph = Graph(f"chain-{length}")
    for name in names:
        graph = graph.node(name, no_op)
    for source, target in zip([START, *names], [*names, FINISH], strict=True):
        graph = graph.edge(source, target)
    return graph


if DATABASE in os.environ:
    app = make_app(os.environ[DATABASE], os.environ[BROKER])
