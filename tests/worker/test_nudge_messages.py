"""What the vehicle task makes of a message without a lease: a claim for the fleet, and a run of its own."""

from __future__ import annotations

from typing import Any

import pytest
from support.apps import a_docket, a_graph

from docket_celery import Docket, RunStatus
from docket_celery.worker.nudges import SHORTEST, Windows
from docket_celery.worker.publisher import VEHICLE, Publisher


class Sent:
    """Stands where nudges go out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at_once = 0
        self.after: list[float] = []
        monkeypatch.setattr(Publisher, "nudge", lambda _: self._count())
        monkeypatch.setattr(Publisher, "wake", lambda _, *, after=0.0: self.after.append(after))

    def _count(self) -> None:
        self.at_once += 1


@pytest.fixture
def docket(postgres_url: str) -> Docket:
    return a_docket(postgres_url)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    return Sent(monkeypatch)


def _start(docket: Docket) -> str:
    return docket.start_run(docket.save_graph(a_graph()), {"name": "Ada"}).id


def _nudged(docket: Docket, **later: Any) -> str:
    return str(docket.app.tasks[VEHICLE](**later))


def test_the_slot_that_takes_a_nudge_drives_the_run_itself(docket: Docket, sent: Sent) -> None:
    run_id = _start(docket)
    assert _nudged(docket) == f"claimed 1; graph=greeting run={run_id} parked:terminal"
    info = docket.inspect_run(run_id)
    assert (info.run.status, info.claim_attempts) == (RunStatus.DONE, 0)


def test_a_nudge_takes_arguments_that_a_later_version_adds(docket: Docket, sent: Sent) -> None:
    assert _nudged(docket, priority="high") == "nothing to claim"


def test_a_second_nudge_of_the_same_moment_is_answered_by_a_later_one(docket: Docket, sent: Sent) -> None:
    docket.nudged = Windows(lambda: 0.0, crowd=1)
    assert _nudged(docket) == "nothing to claim"
    run_id = _start(docket)
    sent.after.clear()
    assert _nudged(docket) == "left to the next nudge"
    assert sent.after == [SHORTEST]
    assert docket.fetch_run(run_id).status is RunStatus.RUNNING


def test_leases_that_cannot_go_out_are_given_back_while_the_slot_drives_its_own(docket: Docket, sent: Sent) -> None:
    docket.app.conf.docket_max_in_flight = 3
    first, *others = [_start(docket) for _ in range(3)]
    assert _nudged(docket).startswith(f"claimed 3; graph=greeting run={first} parked:terminal")
    # The broker is away; the slot has gone on to both of them.
    assert {docket.fetch_run(run_id).status for run_id in (first, *others)} == {RunStatus.DONE}


def test_a_stopping_worker_passes_a_nudge_on_and_claims_nothing(docket: Docket, sent: Sent) -> None:
    run_id = _start(docket)
    docket.stopping.raise_()
    assert _nudged(docket) == "passed on: this worker is stopping"
    assert sent.at_once == 1
    assert docket.inspect_run(run_id).claimed_at is None


def test_a_nudge_ends_in_peace_while_the_database_is_away(sent: Sent, caplog: pytest.LogCaptureFixture) -> None:
    docket = a_docket("postgresql://127.0.0.1:9/never-there")
    assert _nudged(docket) == "unanswered"
    assert "could not claim for a nudge" in caplog.text
