"""A deadline is real on every pool, and long work is kept for as long as it may take."""

from __future__ import annotations

import pytest
from fleet import PATIENCE, Fleet, eventually
from proj.graphs import line
from proj.long_nodes import (
    alone,
    awaits,
    beside,
    blocks_its_loop,
    exits,
    goes_on_regardless,
    holds_the_interpreter,
    kills_its_process,
    returns_late,
    runs_out_of_memory,
    sleeps,
    spins,
    starts_another,
    vanishes,
)

from docket_celery import Retry
from docket_celery.run.document import Run, RunStatus

HOUR = 3_600.0
POOLS = ["prefork", "solo", "threads", "gevent"]


def slow_down(fleet: Fleet, event: str, when: str) -> None:
    """Each write of this kind to a run takes 2.5 s more."""
    fleet.execute(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(2.5); RETURN NEW; END'",
        f"CREATE TRIGGER slow BEFORE {event} ON docket.runs FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION slow()",
    )


def assert_timed_out(fleet: Fleet, run: Run, *, attempts: int = 1) -> None:
    """Failed for its deadline, and nothing of the overdue node was written."""
    ended = fleet.finish(run)
    assert ended.status is RunStatus.FAILED
    assert ended.failure is not None
    assert ended.failure.code == "timeout"
    assert ended.fields.get("log", []) == []
    events = fleet.docket.list_events(run.id).events
    assert [event.data["code"] for event in events if event.type == "node_failed"] == ["timeout"] * attempts
    assert fleet.docket.inspect_run(run.id).claim_attempts == 0


@pytest.mark.parametrize("pool", POOLS)
def test_a_deadline_ends_or_fences_off_whatever_a_node_does(fleet: Fleet, pool: str) -> None:
    fleet.worker("w1", pool=pool)
    fleet.beat()
    late = [
        fleet.start(alone(sleeps, seconds=HOUR, timeout=1.0)),
        fleet.start(alone(awaits, seconds=HOUR, timeout=1.0)),
        fleet.start(alone(goes_on_regardless, seconds=HOUR, timeout=1.0)),
        fleet.start(alone(returns_late, seconds=1.5, timeout=1.0)),
        fleet.start(beside(sleeps, seconds=HOUR, timeout=1.0)),
        fleet.start(beside(awaits, seconds=HOUR, timeout=1.0)),
    ]
    retried = fleet.start(alone(sleeps, seconds=HOUR, timeout=1.5, retry=Retry(max_attempts=2, backoff=0.1)))
    for run in late:
        assert_timed_out(fleet, run)
    # The retried run is of the same graph id with another limit: a version of its own.
    assert_timed_out(fleet, retried, attempts=2)
    assert fleet.executions(retried) == 2
    healthy = [fleet.start(line("s1", "s2")) for _ in range(4)]
    assert [fleet.finish(run).status for run in healthy] == [RunStatus.DONE] * 4
    fleet.assert_invariants()
    if pool == "prefork":
        ((overdue,),) = fleet.rows("SELECT pid FROM probe WHERE run_id = %s AND node = 'slow'", late[4].id)
        eventually(lambda: not fleet.is_alive(overdue))
        assert fleet.finish(fleet.start(line("s1"))).status is RunStatus.DONE
    assert "WorkerLostError" not in fleet.log_of("w1")
    assert "exited with" not in fleet.log_of("w1")


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_a_deadline_that_passes_while_the_result_is_committed_is_too_late(fleet: Fleet, pool: str) -> None:
    fleet.worker("w1", pool=pool)
    fleet.beat()
    slow_down(fleet, "UPDATE", "NEW.checkpoint_seq > OLD.checkpoint_seq AND NEW.graph_id = 'alone-sleeps'")
    run = fleet.start(alone(sleeps, timeout=2.0))
    assert fleet.finish(run).output == {"log": ["sleeps"]}
    assert fleet.executions(run) == 1
    fleet.assert_sound(run, nodes=["sleeps"])
    assert fleet.finish(fleet.start(line("s1"))).status is RunStatus.DONE
    fleet.assert_invariants()


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_a_deadline_that_passes_while_the_node_makes_docket_write_waits_for_the_write(fleet: Fleet, pool: str) -> None:
    fleet.worker("w1", pool=pool)
    fleet.beat()
    slow_down(fleet, "INSERT", "NEW.graph_id = 'another'")
    run = fleet.start(alone(starts_another, seconds=HOUR, timeout=2.0))
    assert_timed_out(fleet, run)
    ((another,),) = fleet.rows("SELECT id FROM docket.runs WHERE graph_id = 'another'")
    assert fleet.docket.await_run(another, timeout=PATIENCE).output == {"log": ["s1"]}
    fleet.assert_invariants()


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_a_node_whose_run_is_cancelled_leaves_its_slot_long_before_its_deadline(fleet: Fleet, pool: str) -> None:
    fleet.worker("w1", pool=pool, concurrency=1)
    fleet.beat()
    run = fleet.start(alone(sleeps, seconds=HOUR))
    eventually(lambda: fleet.executions(run))
    fleet.docket.cancel_run(run.id)
    # The node could go on for 120 s; nothing here waits for half as long.
    assert fleet.finish(fleet.start(line("s1"))).status is RunStatus.DONE
    eventually(lambda: "outcome=discarded" in fleet.log_of("w1"))
    assert fleet.docket.fetch_run(run.id).status is RunStatus.CANCELLED
    assert "node_failed" not in [event.type for event in fleet.docket.list_events(run.id).events]
    fleet.assert_invariants()


@pytest.mark.parametrize("settings", [{"docket_orphan_ttl": 2}])
@pytest.mark.parametrize(
    ("pool", "nodes"),
    [
        ("prefork", [sleeps, spins, blocks_its_loop]),
        ("threads", [sleeps, spins, blocks_its_loop]),
        ("gevent", [sleeps, awaits, blocks_its_loop]),
        ("solo", [spins]),
    ],
)
def test_a_node_longer_than_the_orphan_ttl_is_executed_once(fleet: Fleet, pool: str, nodes: list[object]) -> None:
    fleet.worker("w1", pool=pool, concurrency=3)
    runs = [fleet.start(alone(node, seconds=5.0)) for node in nodes]
    fleet.beat()
    fleet.worker("w2", concurrency=3)
    for run in runs:
        assert fleet.finish(run).status is RunStatus.DONE
        assert fleet.executions(run) == 1
    assert fleet.steals("w1", "w2") == []
    fleet.assert_invariants()


@pytest.mark.parametrize("settings", [{"docket_orphan_ttl": 2, "docket_max_claim_attempts": 3}])
def test_nodes_that_end_their_process_are_contained_and_others_go_on(fleet: Fleet) -> None:
    fleet.worker("w1")
    fleet.beat()
    killer, vanisher = fleet.start(alone(kills_its_process)), fleet.start(alone(vanishes))
    exiting = fleet.start(alone(exits))
    exhausted = [fleet.start(alone(runs_out_of_memory)) for _ in range(20)]
    healthy = [fleet.start(line("s1", "s2", "s3")) for _ in range(10)]
    for run in healthy:
        assert fleet.finish(run).status is RunStatus.DONE
        assert fleet.executions(run) == 3
    for run in [exiting, *exhausted]:
        failed = fleet.finish(run)
        assert failed.status is RunStatus.FAILED
        assert failed.failure is not None
        assert failed.failure.code == "node_error"
        assert fleet.executions(run) == 1
    for run in (killer, vanisher):
        eventually(lambda run=run: fleet.docket.inspect_run(run.id).poisoned_at is not None)
        assert fleet.executions(run) == 3
        assert fleet.docket.inspect_run(run.id).claim_attempts == 3
    assert fleet.finish(fleet.start(line("s1"))).status is RunStatus.DONE
    fleet.assert_invariants()


@pytest.mark.parametrize(
    "settings",
    [
        {
            "docket_orphan_ttl": 2,
            "docket_max_claim_attempts": 2,
            "docket_max_attempt_elapsed": 1,
            "docket_drain_max_elapsed": 1,
            "docket_vehicle_max_elapsed": 1,
            "proj_stop_margin": 1,
        }
    ],
)
def test_code_that_holds_the_interpreter_is_ended_by_the_process_limit(fleet: Fleet) -> None:
    fleet.worker("w1")
    fleet.beat()
    run = fleet.start(alone(holds_the_interpreter, timeout=1.0))
    eventually(lambda: fleet.docket.inspect_run(run.id).poisoned_at is not None)
    assert fleet.executions(run) == 2
    assert fleet.docket.inspect_run(run.id).claim_attempts == 2
    eventually(lambda: fleet.log_of("w1").count("Hard time limit") == 2)
    assert fleet.finish(fleet.start(line("s1"))).status is RunStatus.DONE
    fleet.assert_invariants()
