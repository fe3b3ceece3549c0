"""Two releases of the app side by side: an older worker hands back what it does not know, and goes on with the rest."""

from __future__ import annotations

import pytest
from fleet import Fleet, eventually
from proj.graphs import line

from docket_celery import FINISH, START, Graph
from docket_celery.run.document import Run, RunStatus
from docket_celery.run.views import RunInfo

renewed = (
    Graph("renewed")
    .field("log", list[str], reducer="append")
    .node("new", "proj.new_nodes:new_step", inputs={})
    .edge(START, "new")
    .edge("new", FINISH)
)


def not_claimed(fleet: Fleet, run: Run) -> RunInfo | None:
    """What there is to know of a run, between two attempts at it."""
    info = fleet.docket.inspect_run(run.id)
    return info if info.claimed_at is None else None


@pytest.mark.parametrize(
    "settings", [{"docket_orphan_ttl": 10, "docket_abandon_backoff": 1, "docket_max_claim_abandons": 50}]
)
def test_work_of_the_next_release_waits_for_a_worker_that_knows_it(fleet: Fleet) -> None:
    fleet.worker("w1")
    fleet.beat()
    ref = fleet.docket.save_graph(renewed, check_nodes=False)
    new = [fleet.docket.start_run(ref) for _ in range(5)]
    old = [fleet.start(line("s1", "s2")) for _ in range(5)]
    for run in old:
        assert fleet.finish(run).status is RunStatus.DONE
        fleet.assert_sound(run, nodes=["s1", "s2"])
    eventually(lambda: all(fleet.docket.inspect_run(run.id).claim_abandons for run in new))
    for run in new:
        info = eventually(lambda run=run: not_claimed(fleet, run))  # type: ignore[misc]
        assert (info.run.status, info.claim_attempts, info.poisoned_at) == (RunStatus.RUNNING, 0, None)
        assert "proj.new_nodes:new_step" in (info.abandon_reason or "")
    older = {pid for (pid,) in fleet.rows("SELECT DISTINCT pid FROM probe")}
    fleet.release = "new"
    fleet.worker("w2")
    for run in new:
        assert fleet.finish(run).status is RunStatus.DONE
        fleet.assert_sound(run, nodes=["new"])
        assert fleet.executions(run) == 1
    newer = {pid for (pid,) in fleet.rows("SELECT DISTINCT pid FROM probe WHERE node = 'new'")}
    assert not newer & older
    fleet.assert_invariants()
