"""A plugin for pytest: pytest-celery's `celery_setup` on local processes instead of containers.

Enabled by `pytest_plugins = ["docket_celery.testing.celery_setup"]` in the top conftest.py, and by nothing else:
without that line pytest-celery goes on with its containers. Needs the extra `pytest-celery`; never Docker.
"""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

try:
    import psutil
    from pytest_celery import (
        CeleryBackendCluster,
        CeleryBrokerCluster,
        CeleryTestCluster,
        CeleryTestNode,
        CeleryTestSetup,
        CeleryTestWorker,
        CeleryWorkerCluster,
    )
    from pytest_celery.vendors.redis.backend.api import AsyncResult, RedisTestBackend
    from pytest_celery.vendors.redis.broker.api import RedisTestBroker
except ImportError as error:
    raise ImportError(
        f"docket_celery.testing.celery_setup needs pytest-celery ({error}): pip install 'docket-celery[pytest-celery]'"
    ) from error

from docket_celery.embedded.postgres import EmbeddedPostgres
from docket_celery.testing.containers import BeatContainer, RedisContainer, WorkerContainer
from docket_celery.testing.processes import WorkerOptions

_TEMPLATE: Final = "docket_template"
_LOG_LINES: Final = 40
_numbers = count(1)


class ProcessWorker(CeleryTestWorker):  # type: ignore[misc]
    """pytest-celery's worker node, where it would look into its container."""

    def get_running_processes_info(
        self, columns: list[str] | None = None, filters: dict[str, str] | None = None
    ) -> list[dict[str, Any]]:
        """The worker and its pool processes, with psutil's attributes."""
        main = psutil.Process(self.container.child.pid)
        found = [process.as_dict(columns) for process in (main, *main.children(recursive=True))]
        return [info for info in found if all(info.get(name) == value for name, value in (filters or {}).items())]


class ProcessBackend(RedisTestBackend):  # type: ignore[misc]
    """pytest-celery's backend node, which lets go of results by their type: to ask every object of the process for its
    class wakes lazy ones, such as Django's settings where there are none.
    """

    def teardown(self) -> None:
        gc.collect()
        for found in gc.get_objects():
            if issubclass(type(found), AsyncResult):
                found.backend = None
        CeleryTestNode.teardown(self)


@pytest.fixture
def docket_workers() -> Sequence[WorkerOptions]:
    """The workers of `celery_setup`. A suite overrides this one: nobody else knows its app."""
    raise pytest.UsageError("no workers: override the fixture docket_workers, such as [WorkerOptions(app='proj')]")


@pytest.fixture
def celery_broker_cluster(tmp_path: Path) -> Iterator[CeleryBrokerCluster]:
    """A Redis of the test's own."""
    with _running(CeleryBrokerCluster(RedisTestBroker(RedisContainer("broker", tmp_path / "broker")))) as cluster:
        yield cluster


@pytest.fixture
def celery_backend_cluster(tmp_path: Path) -> Iterator[CeleryBackendCluster]:
    """Another Redis, for results. A suite that needs none overrides this with None."""
    with _running(CeleryBackendCluster(ProcessBackend(RedisContainer("backend", tmp_path / "backend")))) as cluster:
        yield cluster


@pytest.fixture
def default_worker_cls() -> type[CeleryTestWorker]:
    return ProcessWorker


@pytest.fixture
def celery_worker_cluster(
    docket_workers: Sequence[WorkerOptions],
    celery_worker_cluster_config: Mapping[str, Any],
    default_worker_cls: type[CeleryTestWorker],
    tmp_path: Path,
) -> Iterator[CeleryWorkerCluster]:
    """The workers that `docket_workers` names, started together. The setup gives them its app when it is made."""
    names = [options.name for options in docket_workers]
    if len(set(names)) < len(names):
        raise pytest.UsageError(f"docket_workers: each worker needs a name of its own, got {', '.join(names)}")
    directed = [_directed(options, celery_worker_cluster_config) for options in docket_workers]
    nodes = [default_worker_cls(WorkerContainer(options, tmp_path), app=None) for options in directed]
    with _running(CeleryWorkerCluster(*nodes)) as cluster:
        yield cluster


@pytest.fixture
def docket_beat(
    docket_workers: Sequence[WorkerOptions], celery_worker_cluster_config: Mapping[str, Any], tmp_path: Path
) -> Iterator[CeleryTestNode]:
    """A beat for the app of the first worker, in its environment: a node like the others."""
    first = _directed(docket_workers[0], celery_worker_cluster_config)
    beat = CeleryTestNode(BeatContainer(first.app, tmp_path, env=first.env, cwd=first.cwd))
    with _running(CeleryTestCluster(beat)):
        yield beat


@pytest.fixture(scope="session")
def docket_postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """One PostgreSQL for the session, fast and without regard for power failures."""
    from docket_celery.storage.postgres import migrate

    with EmbeddedPostgres.start(tmp_path_factory.mktemp("docket-postgres"), settings={"fsync": "off"}) as server:
        migrate.upgrade(server.create_database(_TEMPLATE))
        yield server


@pytest.fixture
def docket_database_url(docket_postgres: EmbeddedPostgres) -> Iterator[str]:
    """A database of the test's own, migrated to the schema `docket`."""
    name = f"docket_{next(_numbers)}"
    yield docket_postgres.create_database(name, template=_TEMPLATE)
    docket_postgres.tool("dropdb", "--force", "--maintenance-db", docket_postgres.url(), name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Shows, with a test that failed, the end of what its workers logged."""
    report = yield
    setup = getattr(item, "funcargs", {}).get("celery_setup")
    if report.failed and isinstance(setup, CeleryTestSetup):
        for worker in setup.worker_cluster or ():
            report.sections.append((f"log of {worker.name()}", "\n".join(worker.logs().splitlines()[-_LOG_LINES:])))
    return report


@contextmanager
def _running(cluster: CeleryTestCluster) -> Iterator[CeleryTestCluster]:
    """The cluster once it is ready; its nodes are ended on the way out."""
    try:
        cluster.ready()
        yield cluster
    finally:
        for node in cluster:
            node.teardown()


def _directed(options: WorkerOptions, config: Mapping[str, Any]) -> WorkerOptions:
    """With the addresses of broker and backend, as the test sees them, in the variables that Celery itself reads."""
    clusters = {
        "CELERY_BROKER_URL": config["celery_broker_cluster_config"],
        "CELERY_RESULT_BACKEND": config["celery_backend_cluster_config"],
    }
    addresses = {variable: ";".join(cluster["host_urls"]) for variable, cluster in clusters.items() if cluster}
    return replace(options, env={**addresses, **options.env})
