"""What brokers and schedulers do to other systems: redelivery, wiped keys, floods of ticks, doubled and dead beats."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import psycopg
import pytest
from fleet import HERE, Fleet, eventually
from proj.graphs import line, napping, order, retrying
from support.builders import a_scan

from docket_celery.run.document import RunStatus
from docket_celery.worker.nudges import LONGEST
from docket_celery.worker.publisher import DISPATCH, VEHICLE


def redis_client(fleet: Fleet) -> Any:
    return fleet.app.connection_for_write().channel().client


def unacknowledged_message(client: Any) -> str:
    """The message of the one vehicle under way, as the broker would put it back into its queue."""
    held = [json.loads(entry) for entry in client.hvals("unacked")]
    (message,) = [message for message, _exchange, queue in held if queue == "docket"]
    return json.dumps(message)


@pytest.mark.parametrize("settings", [{"docket_orphan_ttl": 60}])
@pytest.mark.parametrize(("carrying", "outcome"), [("a lease", "'fence_lost'"), ("no lease", "'nothing to claim'")])
def test_a_message_redelivered_while_its_run_is_under_way_does_nothing(
    fleet: Fleet, carrying: str, outcome: str
) -> None:
    client = redis_client(fleet)
    run = fleet.start(line("gate1"))
    if carrying == "a lease":
        client.flushall()
        assert fleet.docket.publisher(fleet.docket.storage.runs.claim_due(a_scan(limit=1)).leases) == 1
    fleet.worker("w1", concurrency=1)
    eventually(lambda: fleet.executions(run))
    message = unacknowledged_message(client)
    fleet.worker("w2", concurrency=1)
    for times in range(1, 4):
        client.lpush("docket", message)
        eventually(lambda times=times: fleet.log_of("w2").count(outcome) == times)
    assert fleet.docket.inspect_run(run.id).claim_attempts == 1
    fleet.open_gate("gate1")
    assert fleet.finish(run).status is RunStatus.DONE
    fleet.assert_sound(run, nodes=["gate1"])
    assert fleet.executions(run) == 1


def test_no_message_carries_a_countdown(fleet: Fleet) -> None:
    fleet.worker("w1")
    fleet.beat()
    run = fleet.start(retrying(backoff=3.0))
    eventually(lambda: fleet.docket.inspect_run(run.id).view == "scheduled")
    client = redis_client(fleet)
    queued = [text for key in ("docket", "docket.ticks") for text in client.lrange(key, 0, -1)]
    unacknowledged = client.hvals("unacked")
    assert all(b'"eta": null' in text for text in [*queued, *unacknowledged])
    assert fleet.finish(run).status is RunStatus.DONE
    assert fleet.executions(run) == 2


def test_a_broker_wiped_again_and_again_under_load_loses_nothing(fleet: Fleet) -> None:
    fleet.worker("w1")
    fleet.worker("w2")
    fleet.beat()
    client = redis_client(fleet)
    working = [fleet.start(line("s1", "s2", "s3")) for _ in range(10)]
    client.flushall()
    retried = [fleet.start(retrying(backoff=2.0)) for _ in range(5)]
    asking = [fleet.start(order, {"order_id": str(number)}) for number in range(5)]
    eventually(lambda: all(fleet.docket.fetch_run(run.id).status is RunStatus.WAITING for run in asking))
    client.flushall()
    for run in asking:
        fleet.docket.resolve_interrupt(run.id, fleet.docket.fetch_run(run.id).interrupts[0].id, False)
    client.flushall()
    late = [fleet.start(line("s1")) for _ in range(3)]
    for run in [*working, *retried, *asking, *late]:
        assert fleet.finish(run).status is RunStatus.DONE
    for run in working:
        fleet.assert_sound(run, nodes=["s1", "s2", "s3"])
    fleet.assert_invariants()


def test_hundreds_of_old_ticks_cost_a_handful_of_scans(fleet: Fleet) -> None:
    run = fleet.start(line("s1"))
    for _ in range(300):
        fleet.app.send_task(DISPATCH, queue="docket.ticks", ignore_result=True)
    scans = "SELECT scans FROM docket.dispatch"
    (before,) = fleet.rows(scans)[0]
    began = time.monotonic()
    fleet.worker("w1", concurrency=1)
    assert fleet.finish(run).status is RunStatus.DONE
    eventually(lambda: redis_client(fleet).llen("docket.ticks") <= 2)
    (after,) = fleet.rows(scans)[0]
    # Of every 0.95 s one tick is let in.
    assert after - before <= 3 + (time.monotonic() - began) / 0.95


def test_hundreds_of_old_nudges_cost_a_handful_of_scans_and_delay_nothing(fleet: Fleet) -> None:
    run = fleet.start(line("s1"))
    for _ in range(300):
        fleet.app.send_task(VEHICLE, queue="docket", ignore_result=True)
    scans = "SELECT scans FROM docket.dispatch"
    (before,) = fleet.rows(scans)[0]
    began = time.monotonic()
    fleet.worker("w1", concurrency=1)
    assert fleet.finish(run).status is RunStatus.DONE
    eventually(lambda: redis_client(fleet).llen("docket") == 0)
    (after,) = fleet.rows(scans)[0]
    assert after - before <= 6 + (time.monotonic() - began) / LONGEST
    late = fleet.start(line("s1"))
    assert fleet.finish(late).status is RunStatus.DONE


@pytest.mark.parametrize("settings", [{"docket_orphan_ttl": 3, "docket_poll_interval": 30}])
def test_the_nudge_of_a_process_whose_clock_is_minutes_slow_is_not_taken_for_stale(fleet: Fleet) -> None:
    fleet.worker("w1")
    fleet.settings["proj_clock_behind"] = 600
    ref = fleet.docket.save_graph(line("s1"))
    script = f"""
from proj.celeryapp import app
from docket_celery import Docket
print(Docket.of(app).start_run({ref.graph_id!r}).id)
"""
    started = subprocess.run(
        [sys.executable, "-c", script], env=fleet.environment, cwd=HERE, capture_output=True, text=True, check=True
    )
    run = fleet.docket.await_run(started.stdout.strip(), timeout=20.0)
    assert run.status is RunStatus.DONE
    assert "revoked" not in fleet.log_of("w1")


def test_timers_fire_once_each_through_doubled_and_dead_beats(fleet: Fleet) -> None:
    fleet.worker("w1")
    fleet.worker("w2")
    beats = [fleet.beat("beat1"), fleet.beat("beat2")]
    runs = [fleet.start(napping(seconds)) for seconds in (1, 2, 3, 4) * 2]
    eventually(lambda: all(fleet.executions(run, "nap") for run in runs))
    eventually(lambda: fleet.docket.fetch_run(runs[1].id).status is RunStatus.DONE)
    for beat in beats:
        beat.kill()
    # So long after all the others that none of their scans sets a nudge for it.
    runs.append(fleet.start(napping(8)))
    overdue = "SELECT count(*) FROM docket.runs WHERE wake_at < clock_timestamp() - interval '2 seconds'"
    eventually(lambda: fleet.rows(overdue)[0][0])
    fleet.beat("beat3")
    for run in runs:
        assert fleet.finish(run).status is RunStatus.DONE
        fleet.assert_sound(run, nodes=["nap", "s2"])
        assert (fleet.executions(run, "nap"), fleet.executions(run, "s2")) == (1, 1)
    fleet.assert_invariants()


@pytest.mark.parametrize("hours", [1, 12])
def test_the_ticks_of_a_beat_whose_clock_is_hours_slow_are_not_taken_for_stale(fleet: Fleet, hours: int) -> None:
    run = fleet.start(line("s1"))
    redis_client(fleet).flushall()
    fleet.worker("w1")
    fleet.settings["proj_clock_behind"] = hours * 3_600
    fleet.beat()
    assert fleet.finish(run).status is RunStatus.DONE
    assert "revoked" not in fleet.log_of("w1")


@pytest.mark.parametrize("forget", [False, True], ids=["kept", "wiped"])
def test_a_restarted_worker_of_the_same_name_does_not_vouch_for_its_predecessor(fleet: Fleet, forget: bool) -> None:
    first = fleet.worker("w1", concurrency=1)
    fleet.beat()
    run = fleet.start(line("gate1"))
    eventually(lambda: fleet.executions(run))
    first.kill()
    fleet.worker("w1", concurrency=1)
    if forget:
        with psycopg.connect(fleet.database_url, autocommit=True) as connection:
            connection.execute("DELETE FROM docket.worker_slots")
    eventually(lambda: fleet.executions(run) == 2)
    assert fleet.docket.inspect_run(run.id).claim_attempts == 2
    fleet.open_gate("gate1")
    assert fleet.finish(run).status is RunStatus.DONE


@pytest.mark.parametrize("published", [0, 5, 10])
def test_a_dispatcher_killed_in_the_middle_of_its_batch_costs_time_only(fleet: Fleet, published: int) -> None:
    runs = [fleet.start(line("s1", "s2")) for _ in range(10)]
    script = f"""
import os, signal
from proj.celeryapp import app
from docket_celery import Docket
from docket_celery.dispatcher import Dispatcher
docket = Docket.of(app)
def launch(leases):
    assert len(leases) == 10, leases
    docket.publisher(leases[:{published}])
    os.kill(os.getpid(), signal.SIGKILL)
minute = __import__("datetime").timedelta(minutes=1)
docket.storage.fleet.register_worker("tester", 10, ttl=minute, orphan_ttl=docket.engine.orphan_ttl)
Dispatcher(docket.engine, launch).tick()
"""
    died = subprocess.run([sys.executable, "-c", script], env=fleet.environment, cwd=HERE, check=False)
    assert died.returncode == -signal.SIGKILL
    fleet.worker("w1")
    fleet.beat()
    for run in runs:
        assert fleet.finish(run).status is RunStatus.DONE
        fleet.assert_sound(run, nodes=["s1", "s2"])
        assert fleet.executions(run) == 2
    fleet.assert_invariants()


def test_a_worker_whose_connections_are_cut_consumes_again(fleet: Fleet) -> None:
    fleet.worker("w1")
    fleet.beat()
    client, pause = redis_client(fleet), threading.Event()
    for _ in range(5):
        client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        pause.wait(0.4)
    runs = [fleet.start(line("s1")) for _ in range(5)]
    for run in runs:
        assert fleet.finish(run).status is RunStatus.DONE
        assert fleet.executions(run) == 1


def test_leases_never_outnumber_the_slots_that_registered(fleet: Fleet) -> None:
    fleet.worker("w1", concurrency=2)
    fleet.beat()
    runs = [fleet.start(line("gate1")) for _ in range(6)]
    eventually(lambda: sum(fleet.executions(run) for run in runs) == 2)
    (claimed,) = fleet.rows("SELECT count(*) FROM docket.runs WHERE claim_token IS NOT NULL")[0]
    assert claimed == 2
    assert len(fleet.docket.storage.runs.claim_due(a_scan(limit=1, delivery="direct")).leases) == 1
    fleet.open_gate("gate1")
    finished = [run for run in runs if fleet.docket.inspect_run(run.id).claim_attempts == 0]
    for run in finished:
        eventually(lambda run=run: fleet.docket.fetch_run(run.id).status is not RunStatus.RUNNING)
