"""What `celery control` changes in a running worker, and what the rest of the fleet makes of it."""

from __future__ import annotations

from typing import Any

from fleet import PATIENCE, Fleet, eventually
from proj.graphs import line

from docket_celery.run.document import RunStatus

SLOTS = "SELECT worker, slots FROM docket.worker_slots ORDER BY worker"
HELD = "SELECT count(DISTINCT run_id) FROM probe WHERE node = 'gate'"


def control(fleet: Fleet, command: str, worker: str = "w1", **arguments: Any) -> None:
    eventually(lambda: fleet.answers(worker))
    (reply,) = fleet.app.control.broadcast(
        command, arguments=arguments, destination=[f"{worker}@test"], reply=True, timeout=PATIENCE, limit=1
    )
    assert "ok" in reply[f"{worker}@test"]


def test_a_pool_that_has_grown_is_filled_and_one_that_has_shrunk_is_not_overfilled(fleet: Fleet) -> None:
    fleet.worker("w1", concurrency=1)
    fleet.beat()
    assert fleet.rows(SLOTS) == [("w1@test", 1)]
    control(fleet, "pool_grow", n=2)
    eventually(lambda: fleet.rows(SLOTS) == [("w1@test", 3)])
    runs = [fleet.start(line("gate")) for _ in range(3)]
    eventually(lambda: fleet.rows(HELD) == [(3,)])
    fleet.open_gate("gate")
    assert all(fleet.finish(run).status is RunStatus.DONE for run in runs)
    control(fleet, "pool_shrink", n=2)
    eventually(lambda: fleet.rows(SLOTS) == [("w1@test", 1)])
    fleet.assert_invariants()


def test_an_autoscaler_that_was_set_anew_counts_with_its_new_maximum(fleet: Fleet) -> None:
    fleet.worker("w1", "--autoscale=2,1")
    assert fleet.rows(SLOTS) == [("w1@test", 2)]
    control(fleet, "autoscale", max=4, min=1)
    eventually(lambda: fleet.rows(SLOTS) == [("w1@test", 4)])


def test_a_worker_that_was_told_to_leave_the_queue_counts_no_more_until_it_is_back(fleet: Fleet) -> None:
    fleet.worker("w1")
    fleet.worker("w2")
    fleet.beat()
    control(fleet, "cancel_consumer", queue="docket")
    eventually(lambda: fleet.rows(SLOTS) == [("w2@test", 2)])
    runs = [fleet.start(line("gate")) for _ in range(5)]
    eventually(lambda: fleet.rows(HELD) == [(2,)])
    assert fleet.docket.storage.fleet.backlog(orphan_ttl=fleet.docket.engine.orphan_ttl).claimed == 2
    control(fleet, "add_consumer", queue="docket")
    eventually(lambda: fleet.rows(SLOTS) == [("w1@test", 2), ("w2@test", 2)])
    eventually(lambda: fleet.rows(HELD) == [(4,)])
    fleet.open_gate("gate")
    assert all(fleet.finish(run).status is RunStatus.DONE for run in runs)
    fleet.assert_invariants()
