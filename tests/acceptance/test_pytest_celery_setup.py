"""Docket under pytest-celery's own `celery_setup`: its broker, its backend and its workers are processes here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, chain
from fleet import PATIENCE, Fleet, eventually
from proj.graphs import line
from proj.tasks import receipt
from pytest_celery import CeleryBrokerCluster, CeleryTestNode, CeleryTestSetup

from docket_celery.run.document import RunStatus
from docket_celery.testing.processes import WorkerOptions

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
NO_DOCKER = "tcp://127.0.0.1:1"
WRONG = "def test_wrong(celery_setup):\n    raise AssertionError\n"
PLAIN = "def test_it(celery_setup):\n    pass\n"

pytest_plugins = ["docket_celery.testing.celery_setup"]


class Lazy:
    """As Django's settings where there are none: to ask what it is wakes it, and fails."""

    @property
    def __class__(self) -> Any:
        raise RuntimeError("there is nothing to wake")


@pytest.fixture(scope="module", autouse=True)
def lazy_object() -> Iterator[None]:
    """Something in the process that nobody may ask for its class."""
    kept = Lazy()
    yield
    del kept


@pytest.fixture
def settings() -> dict[str, Any]:
    return {
        "docket_orphan_ttl": 3,
        "docket_max_attempt_elapsed": 120,
        "docket_poll_interval": 1,
        "docket_tick": "worker",
    }


@pytest.fixture
def broker(celery_broker_cluster: CeleryBrokerCluster) -> Any:
    """The setup's broker, for the fleet."""
    return SimpleNamespace(url=lambda: celery_broker_cluster[0].config()["host_url"])


@pytest.fixture
def docket_workers(fleet: Fleet) -> list[WorkerOptions]:
    return [WorkerOptions(app=fleet.module, queues="celery,docket", concurrency=1, env=fleet.environment)]


@pytest.fixture
def celery_setup_app(fleet: Fleet, celery_setup_config: dict[str, Any]) -> Celery:
    fleet.app.conf.update(celery_setup_config)
    return fleet.app


def test_a_run_and_a_chain_of_tasks_are_done_by_the_same_worker(celery_setup: CeleryTestSetup, fleet: Fleet) -> None:
    assert celery_setup.ready(control=True)
    run = fleet.start(line("s1", "s2"))
    chained = chain(receipt.s("o-17"), receipt.s()).delay()
    assert chained.get(timeout=PATIENCE) == {"order": {"order": "o-17"}}
    assert fleet.finish(run).output == {"log": ["s1", "s2"]}
    fleet.assert_sound(run, nodes=["s1", "s2"])
    celery_setup.worker.assert_log_exists("Task docket_celery.vehicle")
    answers = celery_setup.app.control.inspect([celery_setup.worker.hostname()], timeout=PATIENCE, limit=1).ping()
    assert list(answers) == [celery_setup.worker.hostname()]


def test_a_run_goes_on_after_the_sigkill_and_restart_of_its_worker(celery_setup: CeleryTestSetup, fleet: Fleet) -> None:
    run = fleet.start(line("s1", "gate2", "s3"))
    eventually(lambda: fleet.executions(run, "gate2"))
    celery_setup.worker.kill()
    assert celery_setup.worker.container.status == "exited"
    celery_setup.worker.restart()
    eventually(lambda: fleet.executions(run, "gate2") == 2)
    fleet.open_gate("gate2")
    assert fleet.finish(run).output == {"log": ["s1", "gate2", "s3"]}
    fleet.assert_sound(run, nodes=["s1", "gate2", "s3"])
    assert (fleet.executions(run, "s1"), fleet.executions(run, "s3")) == (1, 1)
    fleet.assert_invariants()


def test_a_run_started_without_a_broker_is_done_when_there_is_one(celery_setup: CeleryTestSetup, fleet: Fleet) -> None:
    celery_setup.broker.kill()
    celery_setup.worker.wait_for_log("Trying to re-establish the connection")
    run = fleet.start(line("s1"))
    assert fleet.docket.fetch_run(run.id).status is RunStatus.RUNNING
    celery_setup.broker.restart()
    assert fleet.finish(run).status is RunStatus.DONE
    fleet.assert_sound(run, nodes=["s1"])
    assert fleet.executions(run) == 1


def test_a_worker_that_is_told_to_stop_leaves_its_log_behind_and_comes_back(
    celery_setup: CeleryTestSetup,
) -> None:
    worker = celery_setup.worker
    before = {process["pid"] for process in worker.get_running_processes_info(["pid"])}
    assert worker.container.child.pid in before
    assert len(before) == 2
    worker.kill("SIGTERM")
    worker.wait_for_log("Warm shutdown")
    eventually(lambda: worker.container.status == "exited")
    worker.restart()
    assert worker.logs().count(f"{worker.hostname()} ready.") == 2
    assert before.isdisjoint(process["pid"] for process in worker.get_running_processes_info(["pid"]))


@pytest.mark.parametrize("settings", [{"docket_poll_interval": 1}])
def test_a_beat_is_a_node_like_the_others(
    celery_setup: CeleryTestSetup, docket_beat: CeleryTestNode, fleet: Fleet
) -> None:
    docket_beat.kill()
    docket_beat.restart()
    docket_beat.assert_log_exists("Sending due task docket_celery.dispatch")
    celery_setup.worker.assert_log_exists("Task docket_celery.dispatch")


def suite(directory: Path, *options: str) -> str:
    """What pytest says about the tests in `directory`, on a machine without Docker."""
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options],
        cwd=directory,
        env={**os.environ, "DOCKER_HOST": NO_DOCKER},
        capture_output=True,
        text=True,
        timeout=240,
    )
    return ended.stdout + ended.stderr


def test_the_suite_that_the_documentation_shows_passes_and_a_failing_test_shows_the_workers_log(tmp_path: Path) -> None:
    for name, text in re.findall(r'```python title="(\S+)"\n(.*?)```', PAGE.read_text(encoding="utf-8"), re.DOTALL):
        (tmp_path / name).write_text(text)
    (tmp_path / "test_wrong.py").write_text(WRONG)
    said = suite(tmp_path)
    assert "1 failed, 2 passed" in said, said
    assert "- log of worker -" in said
    assert re.search(r"worker@\w{12} ready\.", said)


def test_without_the_plugin_the_setup_is_made_of_containers(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(PLAIN)
    said = suite(tmp_path, "--setup-plan")
    assert "celery_setup_worker-celery_redis_broker-celery_redis_backend" in said, said
    assert "docket_workers" not in said


def test_a_suite_that_does_not_say_which_workers_is_told_to(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["docket_celery.testing.celery_setup"]\n')
    (tmp_path / "test_it.py").write_text(PLAIN)
    assert "no workers: override the fixture docket_workers" in suite(tmp_path)
