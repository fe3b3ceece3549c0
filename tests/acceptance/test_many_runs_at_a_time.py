"""Workers that drive many runs in one process: what meets shares a statement, and a fault meets all of them."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from fleet import Fleet, eventually
from proj.graphs import line

from docket_celery.run.document import RunStatus

RUNS, AT_A_TIME = 150, 8
NODES = ["s1", "s2", "s3"]
ENDED = "SELECT count(*) FROM docket.runs WHERE status = 'done'"
SHARED = "SELECT count(*) - count(DISTINCT xmin::text) FROM docket.runs WHERE checkpoint_seq > 1"
"""Runs whose latest commit was made in the transaction of another's."""
CUT = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND starts_with(query, 'WITH')
"""


@pytest.mark.parametrize("pool", ["threads", "gevent"])
def test_commits_that_meet_survive_cut_connections_and_the_sigkill_of_their_worker(fleet: Fleet, pool: str) -> None:
    ref = fleet.docket.save_graph(line(*NODES))
    runs = fleet.docket.start_runs(ref, [{}] * RUNS)
    first = fleet.worker("w1", pool=pool, concurrency=AT_A_TIME)
    fleet.beat()
    for part in (1, 2, 3):
        eventually(lambda part=part: fleet.rows(ENDED)[0][0] >= RUNS * part / 8)
        fleet.rows(CUT)
    assert fleet.rows(SHARED)[0][0] > 0
    first.signal(signal.SIGKILL)
    fleet.worker("w2", pool=pool, concurrency=AT_A_TIME)
    for run in runs:
        done = fleet.finish(run)
        assert (done.status, done.output) == (RunStatus.DONE, {"log": NODES})
        fleet.assert_sound(run, nodes=NODES)
    again = sum(fleet.executions(run) for run in runs) - RUNS * len(NODES)
    assert 0 <= again <= AT_A_TIME
    fleet.assert_invariants()


BY_MESSAGE: dict[str, Any] = {
    "docket_refill": "broker",
    "docket_orphan_ttl": 120,
    "broker_transport_options": {"ack_emulation": False},
}
"""As the page about operations says for gevent and Redis. A lease that is lost would be missed for longer than any test
waits.
"""


@pytest.mark.parametrize("settings", [BY_MESSAGE])
def test_with_a_message_per_run_and_no_acknowledgements_in_redis_an_orderly_stop_loses_no_lease(fleet: Fleet) -> None:
    ref = fleet.docket.save_graph(line("s1"))
    runs = fleet.docket.start_runs(ref, [{}] * RUNS)
    fleet.beat()
    for name, part in (("w1", 1 / 4), ("w2", 1 / 2)):
        worker = fleet.worker(name, "--prefetch-multiplier", "2", pool="gevent", concurrency=AT_A_TIME)
        eventually(lambda part=part: fleet.rows(ENDED)[0][0] >= RUNS * part)  # type: ignore[misc]
        worker.signal(signal.SIGTERM)
        assert worker.wait(30.0)
    fleet.worker("w3", "--prefetch-multiplier", "2", pool="gevent", concurrency=AT_A_TIME)
    for run in runs:
        assert fleet.finish(run).status is RunStatus.DONE
        fleet.assert_sound(run, nodes=["s1"])
    assert sum(fleet.executions(run) for run in runs) == RUNS
    fleet.assert_invariants()
