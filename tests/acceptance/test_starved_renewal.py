"""Code that holds the interpreter for longer than the orphan TTL: the worker renews in the place of its process."""

from __future__ import annotations

import signal

import pytest
from fleet import Fleet, eventually
from proj.graphs import line
from proj.long_nodes import alone, holds_the_interpreter, holds_the_interpreter_for_a_while, then

from docket_celery.run.document import RunStatus

LONG = 10.0
"""Seconds of one call into C; the orphan TTL is 3 s."""
NODE = holds_the_interpreter_for_a_while.__name__


def test_a_call_into_c_that_is_longer_than_the_ttl_is_made_once(fleet: Fleet) -> None:
    """Two at a time, in a worker that has no other slot, while another worker is there to steal them."""
    fleet.worker("w1")
    fleet.beat()
    runs = [
        fleet.start(alone(holds_the_interpreter_for_a_while, seconds=LONG)),
        fleet.start(then(holds_the_interpreter_for_a_while, seconds=LONG)),
    ]
    eventually(lambda: all(fleet.executions(run) for run in runs))
    fleet.worker("w2")
    for run, nodes in zip(runs, ([NODE], ["gate1", "s2"]), strict=True):
        assert fleet.finish(run).status is RunStatus.DONE
        assert fleet.executions(run, nodes[0]) == 1
        fleet.assert_sound(run, nodes=nodes)
    assert fleet.steals("w1", "w2") == []
    assert fleet.finish(fleet.start(line("s1"))).status is RunStatus.DONE
    fleet.assert_invariants()


def test_a_worker_told_to_stop_renews_in_the_place_of_its_process_until_the_call_has_ended(fleet: Fleet) -> None:
    worker = fleet.worker("w1", concurrency=1)
    fleet.beat()
    run = fleet.start(alone(holds_the_interpreter_for_a_while, seconds=LONG))
    eventually(lambda: fleet.executions(run))
    fleet.worker("w2", concurrency=1)
    worker.signal(signal.SIGTERM)
    assert worker.wait(30.0)
    assert worker.exit_code == 0
    assert fleet.docket.fetch_run(run.id).status is RunStatus.DONE
    assert fleet.executions(run) == 1
    fleet.assert_sound(run, nodes=[NODE])
    fleet.assert_invariants()


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL], ids=["frozen", "killed"])
def test_nobody_renews_in_the_place_of_a_process_that_is_not_at_work(fleet: Fleet, number: signal.Signals) -> None:
    """Its call would go on for hours, and so might its claim: another worker takes the run after the TTL."""
    fleet.worker("w1", concurrency=1)
    fleet.beat()
    run = fleet.start(alone(holds_the_interpreter))
    eventually(lambda: fleet.executions(run))
    eventually(lambda: "renewed in its place" in fleet.log_of("w1"))
    fleet.worker("w2", concurrency=1)
    ((pid,),) = fleet.rows("SELECT pid FROM probe WHERE run_id = %s", run.id)
    fleet.signal(pid, number)
    eventually(lambda: fleet.executions(run) == 2, timeout=20.0)
    assert fleet.docket.inspect_run(run.id).claim_attempts == 2
    fleet.docket.cancel_run(run.id)
    # No worker could stop in good order with such a process.
    for (left,) in fleet.rows("SELECT pid FROM probe WHERE run_id = %s", run.id):
        if fleet.is_alive(left):
            fleet.signal(left, signal.SIGKILL)
