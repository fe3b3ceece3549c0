"""An app that names its queues and lets none be missing, and does not name docket's."""

from __future__ import annotations

from typing import Any

import pytest
from fleet import PATIENCE, Fleet, eventually
from proj.graphs import line, napping

from docket_celery.embedded.process import StartFailed
from docket_celery.run.document import RunStatus

CLOSED: dict[str, Any] = {
    "docket_orphan_ttl": 3,
    "docket_poll_interval": 1,
    "task_create_missing_queues": False,
    "task_queues": {"mail": {"exchange": "mail", "routing_key": "mail"}},
    "task_default_queue": "mail",
}


def served(fleet: Fleet, worker: str) -> list[str]:
    """The queues that a worker consumes."""
    eventually(lambda: fleet.answers(worker))
    found = fleet.app.control.inspect([f"{worker}@test"], timeout=PATIENCE, limit=1).active_queues()
    return sorted(queue["name"] for queue in found[f"{worker}@test"])


@pytest.mark.parametrize("settings", [CLOSED])
def test_leases_nudges_and_the_ticks_of_beat_find_their_queues(fleet: Fleet) -> None:
    fleet.worker("w1")
    assert served(fleet, "w1") == ["docket", "docket.ticks"]
    nudged = fleet.start(line("s1", "s2"))
    assert fleet.finish(nudged).status is RunStatus.DONE
    fleet.beat()
    ticked = fleet.start(napping(3.0))
    assert fleet.finish(ticked).status is RunStatus.DONE
    eventually(lambda: fleet.log_of("beat").count("Sending due task docket_celery.dispatch") >= 3)
    assert "QueueNotFound" not in fleet.log_of("w1", "beat")


@pytest.mark.parametrize("settings", [{**CLOSED, "docket_tick": "worker"}])
def test_the_ticks_of_workers_find_their_queue(fleet: Fleet) -> None:
    fleet.worker("w1")
    assert fleet.finish(fleet.start(napping(3.0))).status is RunStatus.DONE


@pytest.mark.parametrize("settings", [CLOSED])
def test_a_worker_of_the_apps_own_queues_takes_none_of_dockets(fleet: Fleet) -> None:
    worker = fleet.celery("w1", "worker", "-n", "w1@test", "-c", "1", "-l", "INFO")
    worker.wait_until(lambda: "w1@test ready" in worker.log.read_text(), timeout=60.0)
    assert served(fleet, "w1") == ["mail"]


@pytest.mark.parametrize("settings", [CLOSED])
def test_a_queue_that_nobody_knows_is_refused_as_before(fleet: Fleet) -> None:
    worker = fleet.celery("w1", "worker", "-Q", "docket,misspelt", "-n", "w1@test")
    with pytest.raises(StartFailed, match="misspelt"):
        worker.wait_until(lambda: False, timeout=30.0)
