"""A server that crashes may take back a claim that was not flushed: the run is due again, and its holder is refused."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from support.builders import ORDER, a_commit, a_run, a_scan, an_initial
from support.clock import eventually

from docket_celery.clock import SystemClock
from docket_celery.embedded.postgres import EmbeddedPostgres
from docket_celery.errors import StaleFence
from docket_celery.run.document import RunStatus
from docket_celery.storage.contracts.claims import Redeemed
from docket_celery.storage.contracts.values import SYSTEM, TENANTLESS
from docket_celery.storage.postgres import migrate, open_storage

WRITERS = "SELECT pid FROM pg_stat_activity WHERE backend_type IN ('walwriter', 'background writer', 'checkpointer')"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    """A server in which nothing but commits writes to disk, once it stands still behind them."""
    with EmbeddedPostgres.start(tmp_path, settings={"autovacuum": "off"}) as server:
        yield server


def _stand_still(server: EmbeddedPostgres) -> list[int]:
    """Stops all that would write the server's log in its own time, and returns these processes."""
    with psycopg.connect(server.url()) as connection:
        writers = [pid for (pid,) in connection.execute(WRITERS).fetchall()]
    for pid in writers:
        os.kill(pid, signal.SIGSTOP)
    eventually(lambda: all(map(_is_stopped, writers)))
    return writers


def _is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def _crash(server: EmbeddedPostgres, stopped: list[int]) -> None:
    os.kill(server.pid, signal.SIGQUIT)
    for pid in stopped:
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: not server.alive)
    server.restart()


def test_a_claim_that_a_crash_took_back_is_a_due_run_and_cannot_commit(server: EmbeddedPostgres) -> None:
    url = server.create_database("proj")
    migrate.upgrade(url)
    storage, clock = open_storage(url), SystemClock()
    storage.graphs.save_graph(TENANTLESS, ORDER, {"id": ORDER.graph_id})
    storage.runs.insert_run(TENANTLESS, an_initial(a_run("run-1", at=clock.now())))

    writers = _stand_still(server)
    lost = storage.runs.take_due(a_scan(limit=1), token="lost").claim
    assert isinstance(lost, Redeemed)
    _crash(server, writers)
    info = storage.runs.inspect_run(SYSTEM, "run-1")
    assert (info.claimed_at, info.claim_attempts) == (None, 0)
    with pytest.raises(StaleFence):
        storage.runs.commit(SYSTEM, a_commit(lost.run, "lost", at=clock.now(), status=RunStatus.DONE))

    kept = storage.runs.take_due(a_scan(limit=1), token="kept").claim
    assert isinstance(kept, Redeemed)
    storage.runs.commit(SYSTEM, a_commit(kept.run, "kept", at=clock.now(), status=RunStatus.DONE))
    _crash(server, [])
    assert storage.runs.fetch_run(SYSTEM, "run-1").status is RunStatus.DONE
