"""Workers that stop, freeze and recycle their processes: an orderly stop costs nothing, and renewal ends last."""

from __future__ import annotations

import signal
from datetime import timedelta

import pytest
from fleet import Fleet, eventually
from proj.graphs import line
from support.builders import a_scan

from docket_celery.run.document import Run, RunStatus
from docket_celery.run.events import EventType

POOLS = ["prefork", "solo", "threads", "gevent"]
NO_RESCUE = {"docket_orphan_ttl": 120}
"""Whatever is taken up within the test's patience was given back, not stolen."""
LEAVING = 60.0
"""Seconds. What a worker did meanwhile is looked at afterwards; an idle child of prefork may take 30 s by itself, where
it waits in vain for billiard's parent to count its last message.
"""


def renewed_for(fleet: Fleet, run: Run) -> timedelta:
    """How far renewal has moved the claim since the node began."""
    query = "SELECT claimed_at - (SELECT min(at) FROM probe WHERE run_id = id) FROM docket.runs WHERE id = %s"
    found = fleet.rows(query, run.id)
    return found[0][0] if found and found[0][0] is not None else timedelta(0)


@pytest.mark.parametrize("settings", [{"docket_orphan_ttl": 2}])
@pytest.mark.parametrize("pool", POOLS)
def test_a_worker_told_to_stop_keeps_its_claims_until_its_node_has_ended(fleet: Fleet, pool: str) -> None:
    """The node outlasts the orphan TTL of 2 s twice over after the signal, and somebody is there to steal it."""
    worker = fleet.worker("w1", pool=pool, concurrency=1)
    fleet.beat()
    run = fleet.start(line("gate1", "s2"))
    eventually(lambda: fleet.executions(run, "gate1"))
    fleet.worker("w2", concurrency=1)
    worker.signal(signal.SIGTERM)
    eventually(lambda: "Warm shutdown" in fleet.log_of("w1"))
    eventually(lambda: renewed_for(fleet, run) > timedelta(seconds=5))
    fleet.open_gate("gate1")
    assert worker.wait(LEAVING)
    assert worker.exit_code == 0
    assert fleet.finish(run).output == {"log": ["gate1", "s2"]}
    assert (fleet.executions(run, "gate1"), fleet.executions(run, "s2")) == (1, 1)
    assert len(fleet.rows("SELECT DISTINCT pid FROM probe WHERE run_id = %s", run.id)) == 2
    assert fleet.steals("w1", "w2") == []
    fleet.assert_sound(run, nodes=["gate1", "s2"])
    fleet.assert_invariants()


@pytest.mark.parametrize(
    ("pool", "settings"),
    [
        ("prefork", NO_RESCUE),
        ("prefork", {**NO_RESCUE, "worker_soft_shutdown_timeout": 1.0}),
        ("gevent", NO_RESCUE),
        ("solo", NO_RESCUE),
    ],
)
def test_a_worker_that_ends_its_tasks_gives_their_claims_back_uncounted(fleet: Fleet, pool: str) -> None:
    worker = fleet.worker("w1", pool=pool, concurrency=1)
    fleet.beat()
    run = fleet.start(line("gate1", "s2"))
    eventually(lambda: fleet.executions(run, "gate1"))
    worker.signal(signal.SIGQUIT)
    assert worker.wait(LEAVING)
    eventually(lambda: fleet.docket.inspect_run(run.id).claim_attempts == 0)
    fleet.worker("w2", concurrency=1)
    eventually(lambda: fleet.executions(run, "gate1") == 2)
    assert fleet.docket.inspect_run(run.id).claim_attempts == 1
    fleet.open_gate("gate1")
    assert fleet.finish(run).output == {"log": ["gate1", "s2"]}
    keys = fleet.rows("SELECT DISTINCT idempotency_key FROM probe WHERE run_id = %s AND node = 'gate1'", run.id)
    assert len(keys) == 1
    fleet.assert_sound(run, nodes=["gate1", "s2"])
    fleet.assert_invariants()


@pytest.mark.parametrize("settings", [{**NO_RESCUE, "worker_soft_shutdown_timeout": 6.0}])
def test_a_node_that_ends_within_the_soft_shutdown_is_committed(fleet: Fleet) -> None:
    worker = fleet.worker("w1", concurrency=1)
    fleet.beat()
    run = fleet.start(line("gate1"))
    eventually(lambda: fleet.executions(run, "gate1"))
    worker.signal(signal.SIGQUIT)
    eventually(lambda: "soft shutdown" in fleet.log_of("w1").lower())
    fleet.open_gate("gate1")
    assert fleet.finish(run).status is RunStatus.DONE
    assert worker.wait(LEAVING)
    assert fleet.executions(run) == 1
    fleet.assert_sound(run, nodes=["gate1"])


@pytest.mark.parametrize("settings", [NO_RESCUE])
def test_a_lease_that_a_stopping_worker_has_not_begun_is_given_back(fleet: Fleet) -> None:
    runs = [fleet.start(line("gate1", name=f"line{number}")) for number in range(4)]
    # Before there is a worker: the nudge of a start would have it take one of them by itself.
    leases = fleet.docket.storage.runs.claim_due(a_scan(limit=4)).leases
    worker = fleet.worker("w1", concurrency=1)
    assert fleet.docket.publisher(leases) == 4
    eventually(lambda: fleet.executions(runs[0]))
    worker.signal(signal.SIGTERM)
    eventually(lambda: "Warm shutdown" in fleet.log_of("w1"))
    fleet.open_gate("gate1")
    assert worker.wait(LEAVING)
    assert fleet.docket.fetch_run(runs[0].id).status is RunStatus.DONE
    begun = [run for run in runs[1:] if fleet.executions(run)]
    assert begun == []
    fleet.worker("w2", concurrency=2)
    fleet.beat()
    for run in runs:
        assert fleet.finish(run).status is RunStatus.DONE
        assert fleet.executions(run) == 1
    fleet.assert_invariants()


@pytest.mark.parametrize("settings", [{**NO_RESCUE, "docket_poll_interval": 3_600}])
@pytest.mark.parametrize("pool", POOLS)
def test_nudges_that_reach_a_stopping_worker_wake_the_next_one(fleet: Fleet, pool: str) -> None:
    """Without beat: nothing else would find these runs."""
    worker = fleet.worker("w1", pool=pool, concurrency=1)
    held = fleet.start(line("gate1"))
    eventually(lambda: fleet.executions(held))
    runs = [fleet.start(line("s1", name=f"line{number}")) for number in range(3)]
    worker.signal(signal.SIGTERM)
    eventually(lambda: "Warm shutdown" in fleet.log_of("w1"))
    fleet.open_gate("gate1")
    assert worker.wait(LEAVING)
    assert fleet.docket.fetch_run(held.id).status is RunStatus.DONE
    assert [fleet.executions(run) for run in runs] == [0, 0, 0]
    fleet.worker("w2", concurrency=1)
    for run in runs:
        assert fleet.finish(run).status is RunStatus.DONE
        assert fleet.executions(run) == 1
    fleet.assert_invariants()


@pytest.mark.parametrize("settings", [NO_RESCUE])
def test_a_worker_that_is_stopped_by_remote_control_takes_on_no_further_run_either(fleet: Fleet) -> None:
    """As the button of Flower does it: no signal is sent, to the process or inside it."""
    worker = fleet.worker("w1", concurrency=1)
    runs = [fleet.start(line("gate1", "s2")) for _ in range(3)]
    eventually(lambda: fleet.executions(runs[0], "gate1"))
    eventually(lambda: fleet.answers("w1"))
    fleet.app.control.shutdown(destination=["w1@test"])
    eventually(lambda: "Got shutdown from remote" in fleet.log_of("w1"))
    eventually(lambda: fleet.rows("SELECT count(*) FROM docket.worker_slots") == [(0,)])
    fleet.open_gate("gate1")
    assert worker.wait(LEAVING)
    assert worker.exit_code == 0
    assert sum(fleet.executions(run, "gate1") for run in runs) == 1
    assert fleet.rows("SELECT count(*) FROM docket.runs WHERE claim_token IS NOT NULL OR claim_attempts > 0") == [(0,)]
    fleet.assert_invariants()


def test_a_run_cancelled_while_its_worker_stops_is_cancelled_and_the_worker_leaves(fleet: Fleet) -> None:
    worker = fleet.worker("w1", concurrency=1)
    fleet.beat()
    run = fleet.start(line("gate1", "s2"))
    eventually(lambda: fleet.executions(run, "gate1"))
    worker.signal(signal.SIGTERM)
    fleet.docket.cancel_run(run.id)
    fleet.open_gate("gate1")
    assert worker.wait(LEAVING)
    assert worker.exit_code == 0
    events = [event.type for event in fleet.docket.list_events(run.id).events]
    assert events.count(EventType.RUN_CANCELLED) == 1
    info = fleet.docket.inspect_run(run.id)
    assert info.run.status is RunStatus.CANCELLED
    assert info.wake_at is None
    assert fleet.executions(run) == 1


def test_a_frozen_process_that_thaws_after_its_run_was_taken_over_changes_nothing(fleet: Fleet) -> None:
    fleet.worker("w1", concurrency=1)
    fleet.beat()
    run = fleet.start(line("gate1", "s2"))
    eventually(lambda: fleet.executions(run, "gate1"))
    ((frozen,),) = fleet.rows("SELECT pid FROM probe WHERE run_id = %s", run.id)
    fleet.signal(frozen, signal.SIGSTOP)
    fleet.worker("w2", concurrency=1)
    eventually(lambda: fleet.executions(run, "gate1") == 2)
    fleet.open_gate("gate1")
    assert fleet.finish(run).output == {"log": ["gate1", "s2"]}
    fleet.signal(frozen, signal.SIGCONT)
    eventually(lambda: "discarded" in fleet.log_of("w1"))
    fleet.assert_sound(run, nodes=["gate1", "s2"])
    fresh = fleet.start(line("s1"))
    assert fleet.finish(fresh).status is RunStatus.DONE
    fleet.assert_invariants()


@pytest.mark.parametrize("settings", [NO_RESCUE])
def test_processes_that_are_recycled_lose_nothing(fleet: Fleet) -> None:
    fleet.worker("w1", "--max-tasks-per-child", "1", "--max-memory-per-child", "1", "--autoscale", "3,1")
    fleet.beat()
    runs = [fleet.start(line("s1", "s2", name=f"line{number % 3}")) for number in range(12)]
    for run in runs:
        assert fleet.finish(run).status is RunStatus.DONE
        assert fleet.executions(run) == 2
    assert fleet.rows("SELECT slots FROM docket.worker_slots") == [(3,)]
    assert "WorkerLostError" not in fleet.log_of("w1")
    fleet.assert_invariants()


@pytest.mark.parametrize("settings", [{"worker_pool_start_method": "spawn"}])
def test_a_pool_whose_processes_could_not_run_vehicles_is_refused_at_the_start(fleet: Fleet) -> None:
    worker = fleet.celery("w1", "worker", "-Q", "docket", "-P", "prefork")
    assert worker.wait(30.0)
    assert worker.exit_code != 0
    assert "worker_pool_start_method" in fleet.log_of("w1")
