"""`docket doctor` and `docket health` on a real fleet, as an operator and a probe call them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

from fleet import HERE, Fleet, eventually
from proj.graphs import line

from docket_celery.run.document import RunStatus


def call(fleet: Fleet, *arguments: str) -> tuple[int, Any]:
    """Exit status and record of a command."""
    command = [sys.executable, "-m", "celery", "-A", "proj.celeryapp", "docket", *arguments, "--json"]
    ended = subprocess.run(command, env=fleet.environment, cwd=HERE, capture_output=True, text=True, timeout=60)
    return ended.returncode, json.loads(ended.stdout)


def test_doctor_has_nothing_to_say_of_a_fleet_that_is_well_and_names_the_worker_that_is_missing(fleet: Fleet) -> None:
    worker = fleet.worker("w1")
    fleet.beat()
    eventually(lambda: fleet.rows("SELECT last_scan_at FROM docket.dispatch")[0][0])
    code, findings = call(fleet, "doctor")
    assert [finding for finding in findings if finding["verdict"] != "fine"] == []
    assert code == 0
    worker.signal(signal.SIGTERM)
    assert worker.wait(30.0)
    code, findings = call(fleet, "doctor")
    (missing,) = [finding for finding in findings if finding["check"] == "workers"]
    assert (code, missing["verdict"]) == (1, "problem")
    assert "worker -Q docket" in missing["advice"]


def test_health_turns_red_while_a_consumer_that_is_alive_takes_nothing_and_green_again(fleet: Fleet) -> None:
    worker = fleet.worker("w1")
    limits = ("--due-limit", "1", "--scan-limit", "1")
    assert call(fleet, "health", *limits)[0] == 0
    worker.signal(signal.SIGSTOP)
    run = fleet.start(line("s1"))
    eventually(lambda: call(fleet, "health", *limits)[0] == 1)
    code, verdict = call(fleet, "health", *limits)
    assert (code, verdict["healthy"]) == (1, False)
    worker.signal(signal.SIGCONT)
    assert fleet.finish(run).status is RunStatus.DONE
    assert call(fleet, "health", *limits) == (0, {"healthy": True, "reason": "no run is due"})


def test_workers_of_different_ttls_are_named_by_the_one_that_starts_and_by_doctor(fleet: Fleet) -> None:
    fleet.worker("w1")
    fleet.settings["docket_orphan_ttl"] = 7
    fleet.worker("w2")
    eventually(lambda: "docket_orphan_ttl is 7 s here, but w1@test has 3 s" in fleet.log_of("w2"))
    assert "docket_orphan_ttl is" not in fleet.log_of("w1")
    _, findings = call(fleet, "doctor")
    (found,) = [finding for finding in findings if finding["check"] == "orphan TTL"]
    assert (found["verdict"], found["seen"]) == ("warning", "docket_orphan_ttl is 7 s here; w1@test has 3 s")
