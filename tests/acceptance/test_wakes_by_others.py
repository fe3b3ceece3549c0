"""Wakes by those who cannot nudge, where nothing else would find their runs for half a minute."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

import psycopg
import pytest
from fleet import HERE, Fleet, eventually
from proj.graphs import line
from support.apps import ABSENT_BROKER

from docket_celery.embedded.process import Child
from docket_celery.errors import AwaitTimeout
from docket_celery.run.document import Run, RunStatus
from docket_celery.worker.publisher import VEHICLE

OFF: dict[str, Any] = {"docket_orphan_ttl": 3, "docket_poll_interval": 30}
ON = {**OFF, "docket_listen": True}
SOON = "SELECT count(*) FROM docket.runs WHERE id = %s AND finished_at < started_at + interval '5 seconds'"
LISTENING = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted"

ELSEWHERE = """
import sys
from proj.celeryapp import app
from docket_celery import Docket
print(Docket.of(app).start_run(sys.argv[1]).id)
"""


def start_without_a_broker(fleet: Fleet) -> Run:
    """A start by another process, whose broker does not answer."""
    ref = fleet.docket.save_graph(line("s1"))
    environment = {**fleet.environment, "PROJ_BROKER_URL": ABSENT_BROKER}
    command = [sys.executable, "-c", ELSEWHERE, ref.graph_id]
    ended = subprocess.run(command, env=environment, cwd=HERE, capture_output=True, text=True, timeout=60, check=True)
    return fleet.docket.fetch_run(ended.stdout.strip())


def start_in_a_transaction(fleet: Fleet) -> Run:
    ref = fleet.docket.save_graph(line("s1"))
    with psycopg.connect(fleet.database_url) as mine:
        return fleet.docket.start_run(ref, connection=mine)


def a_worker_that_listens(fleet: Fleet, name: str = "w1", **how: Any) -> Child:
    """A worker, once it has the turn and has made the scan for what was told before."""
    before = fleet.rows("SELECT scans FROM docket.dispatch")
    worker = fleet.worker(name, **how)
    eventually(lambda: fleet.rows(LISTENING) and fleet.rows("SELECT scans FROM docket.dispatch") > before)
    return worker


def ends_soon(fleet: Fleet, run: Run) -> None:
    assert fleet.finish(run).status is RunStatus.DONE
    assert fleet.rows(SOON, run.id) == [(1,)]


@pytest.mark.parametrize("settings", [ON])
@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
def test_runs_that_nobody_nudges_for_are_done_at_once(fleet: Fleet, pool: str) -> None:
    worker = a_worker_that_listens(fleet, pool=pool)
    ends_soon(fleet, start_without_a_broker(fleet))
    ends_soon(fleet, start_in_a_transaction(fleet))
    worker.signal(signal.SIGTERM)
    assert worker.wait(15.0)
    eventually(lambda: fleet.rows(LISTENING) == [])  # The server may still end the session.


@pytest.mark.parametrize("settings", [OFF])
def test_with_listening_off_they_wait_for_the_tick(fleet: Fleet) -> None:
    fleet.worker("w1")
    runs = [start_without_a_broker(fleet), start_in_a_transaction(fleet)]
    with pytest.raises(AwaitTimeout):
        fleet.docket.await_run(runs[1].id, timeout=4.0)
    fleet.docket.publisher.tick()
    for run in runs:
        assert fleet.finish(run).status is RunStatus.DONE


@pytest.mark.parametrize("settings", [ON])
def test_one_notification_makes_one_scan_however_many_workers_there_are(fleet: Fleet) -> None:
    a_worker_that_listens(fleet, "w1", concurrency=1)
    for name in ("w2", "w3"):
        fleet.worker(name, concurrency=1)

    def told() -> int:
        """How often the workers have told of a message: as it was received, and of how it ended."""
        return fleet.log_of("w1", "w2", "w3").count(f"Task {VEHICLE}[")

    eventually(lambda: told() % 2 == 0)
    before = told()
    for number in range(1, 4):
        ends_soon(fleet, start_in_a_transaction(fleet))
        eventually(lambda number=number: told() >= before + 2 * number)
    assert told() == before + 6
    executions = fleet.rows("SELECT count(*) FROM probe")
    assert executions == [(3,)]


@pytest.mark.parametrize("settings", [{**ON, "docket_poll_interval": 1}])
def test_another_worker_listens_when_the_first_one_dies_or_loses_its_session(fleet: Fleet) -> None:
    first = a_worker_that_listens(fleet, "w1")
    fleet.worker("w2")
    ((before,),) = fleet.rows(LISTENING)
    fleet.rows("SELECT pg_terminate_backend(%s)", before)
    eventually(lambda: [row for row in fleet.rows(LISTENING) if row != (before,)])
    ends_soon(fleet, start_in_a_transaction(fleet))
    first.kill()
    ends_soon(fleet, start_in_a_transaction(fleet))


@pytest.mark.parametrize("settings", [ON])
def test_doctor_shows_whether_somebody_listens(fleet: Fleet) -> None:
    def seen() -> str:
        command = [sys.executable, "-m", "celery", "-A", "proj.celeryapp", "docket", "doctor", "--json"]
        ended = subprocess.run(command, env=fleet.environment, cwd=HERE, capture_output=True, text=True, timeout=60)
        (finding,) = [finding for finding in json.loads(ended.stdout) if finding["check"] == "listener"]
        return str(finding["verdict"])

    assert seen() == "warning"
    a_worker_that_listens(fleet)
    assert seen() == "fine"
