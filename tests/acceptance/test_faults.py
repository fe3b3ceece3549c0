"""Real workers, a real broker, and the faults that lose work elsewhere. Every case is judged on the database."""

from __future__ import annotations

import signal
from datetime import timedelta

import pytest
from fleet import Fleet, eventually
from proj.graphs import line, order
from support.builders import a_scan
from support.clock import within

from docket_celery.run.document import RunStatus
from docket_celery.run.events import EventType
from docket_celery.vehicle import Vehicle

ORDER_NODES = ["price", "stock", "fraud", "review", "approve", "charge"]


def test_a_run_goes_all_the_way_through_beat_broker_and_worker(fleet: Fleet) -> None:
    fleet.worker("w1")
    fleet.worker("w2")
    fleet.beat()
    run = fleet.start(order, {"order_id": "o-17"})
    waiting = fleet.finish(run)
    assert waiting.status is RunStatus.WAITING
    assert [open_.payload for open_ in waiting.interrupts] == [{"total": 1250.0}]
    fleet.docket.resolve_interrupt(run.id, waiting.interrupts[0].id, True)
    done = fleet.finish(run)
    assert done.status is RunStatus.DONE
    assert done.output == {"receipt": {"order": "o-17"}, "log": ["price", "fraud", "stock", "review", "approve"]}
    fleet.assert_sound(run, nodes=ORDER_NODES)
    assert fleet.executions(run) == 1 + 1 + 2 + 1 + 2
    fleet.assert_invariants()


def test_a_run_survives_the_sigkill_of_its_worker(fleet: Fleet) -> None:
    first = fleet.worker("w1", concurrency=1)
    fleet.beat()
    run = fleet.start(line("s1", "gate2", "s3"))
    eventually(lambda: fleet.executions(run, "gate2"))
    first.kill()
    fleet.worker("w2", concurrency=1)
    eventually(lambda: fleet.executions(run, "gate2") == 2)
    # The first worker had committed s1, which forgave its launch; the second launch counts.
    assert fleet.docket.inspect_run(run.id).claim_attempts == 1
    fleet.open_gate("gate2")
    assert fleet.finish(run).output == {"log": ["s1", "gate2", "s3"]}
    fleet.assert_sound(run, nodes=["s1", "gate2", "s3"])
    assert (fleet.executions(run, "s1"), fleet.executions(run, "s3")) == (1, 1)
    keys = fleet.rows("SELECT DISTINCT idempotency_key FROM probe WHERE run_id = %s AND node = 'gate2'", run.id)
    assert len(keys) == 1
    fleet.assert_invariants()


def test_deleting_every_broker_message_while_leases_are_out_loses_nothing(fleet: Fleet) -> None:
    runs = [fleet.start(line("s1", "s2")) for _ in range(5)]
    leases = fleet.docket.storage.runs.claim_due(a_scan(limit=5)).leases
    assert fleet.docket.publisher(leases) == 5
    fleet.purge()
    fleet.worker("w1")
    fleet.beat()
    for run in runs:
        assert fleet.finish(run).status is RunStatus.DONE
        fleet.assert_sound(run, nodes=["s1", "s2"])
        assert fleet.executions(run) == 2
    fleet.assert_invariants()


@pytest.mark.parametrize("settings", [{"docket_orphan_ttl": 120}])
def test_the_same_message_delivered_three_times_runs_once(fleet: Fleet) -> None:
    run = fleet.start(line("gate1"))
    leases = fleet.docket.storage.runs.claim_due(a_scan()).leases
    assert fleet.docket.publisher(leases * 3) == 3
    fleet.worker("w1", concurrency=3)
    eventually(lambda: fleet.log_of("w1").count("'fence_lost'") == 2)
    fleet.open_gate("gate1")
    assert fleet.finish(run).status is RunStatus.DONE
    fleet.assert_sound(run, nodes=["gate1"])
    assert fleet.executions(run) == 1
    fleet.assert_invariants()


@pytest.mark.parametrize("settings", [{"docket_orphan_ttl": 120}])
def test_a_lease_stolen_before_it_is_redeemed_finds_nothing_to_redeem(fleet: Fleet) -> None:
    run = fleet.start(line("s1", "s2"))
    runs = fleet.docket.storage.runs
    (lease,) = runs.claim_due(a_scan()).leases
    (stolen,) = eventually(lambda: runs.claim_due(a_scan(orphan_ttl=timedelta(0), delivery="direct")).leases)
    assert stolen.claim_token != lease.claim_token
    fleet.worker("w1")
    assert fleet.docket.publisher([lease]) == 1
    eventually(lambda: "'fence_lost'" in fleet.log_of("w1"))
    assert fleet.executions(run) == 0
    Vehicle(fleet.docket.engine).drain(stolen)
    assert fleet.docket.fetch_run(run.id).status is RunStatus.DONE
    fleet.assert_sound(run, nodes=["s1", "s2"])
    assert fleet.executions(run) == 2


@pytest.mark.parametrize("fault", ["refused", "half-open"])
def test_a_broker_that_is_down_keeps_no_caller_waiting_and_loses_no_start(fleet: Fleet, fault: str) -> None:
    fleet.worker("w1")
    fleet.beat()
    ref = fleet.docket.save_graph(line("s1"))
    if fault == "refused":
        fleet.broker.stop()
    else:
        fleet.broker.freeze()
    runs = []
    for _ in range(3):
        with within(2.0):
            runs.append(fleet.docket.start_run(ref))
    assert all(fleet.docket.fetch_run(run.id).status is RunStatus.RUNNING for run in runs)
    if fault == "refused":
        fleet.broker.restart()
    else:
        fleet.broker.thaw()
    for run in runs:
        assert fleet.finish(run).status is RunStatus.DONE
        fleet.assert_sound(run, nodes=["s1"])
    fleet.assert_invariants()


def test_an_interrupt_is_answered_from_another_process(fleet: Fleet) -> None:
    fleet.worker("w1")
    fleet.beat()
    run = fleet.start(order, {"order_id": "o-18"})
    waiting = fleet.finish(run)
    answer = fleet.celery("resolve", "docket", "resolve", run.id, waiting.interrupts[0].id, "false")
    assert answer.wait(30.0), answer.tail()
    assert answer.exit_code == 0, answer.tail()
    done = eventually(lambda: (found := fleet.finish(run)).status is RunStatus.DONE and found)
    assert done.fields["approved"] is False
    assert done.output["receipt"] is None
    events = fleet.docket.list_events(run.id).events
    assert [event.type for event in events].count(EventType.INTERRUPT_RESOLVED) == 1
    fleet.assert_sound(run, nodes=["price", "stock", "fraud", "review", "approve"])


def test_a_worker_that_is_told_to_stop_finishes_its_node_and_leaves(fleet: Fleet) -> None:
    worker = fleet.worker("w1", concurrency=1)
    fleet.beat()
    run = fleet.start(line("gate1", "s2"))
    eventually(lambda: fleet.executions(run, "gate1"))
    worker.signal(signal.SIGTERM)
    eventually(lambda: "Warm shutdown" in fleet.log_of("w1"))
    fleet.open_gate("gate1")
    assert worker.wait(30.0)
    assert fleet.docket.fetch_run(run.id).fields["log"][0] == "gate1"
    fleet.worker("w2", concurrency=1)
    assert fleet.finish(run).output == {"log": ["gate1", "s2"]}
    assert fleet.executions(run) == 2
    fleet.assert_invariants()


def test_nothing_is_held_in_the_database_while_a_node_runs(fleet: Fleet) -> None:
    fleet.worker("w1", concurrency=2)
    fleet.beat()
    runs = [fleet.start(line("gate1", name=f"held-{number}")) for number in range(2)]
    eventually(lambda: all(fleet.executions(run) for run in runs))
    held = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        " AND (starts_with(state, 'idle in transaction') OR (state = 'idle' AND xact_start IS NOT NULL))"
    )
    locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
    samples = [(fleet.rows(held)[0][0], fleet.rows(locks)[0][0]) for _ in range(50)]
    assert set(samples) == {(0, 0)}
    fleet.open_gate("gate1")
    for run in runs:
        assert fleet.finish(run).status is RunStatus.DONE
    fleet.assert_invariants()
