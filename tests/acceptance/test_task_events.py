"""What a monitor sees of vehicles: task events, through a real event receiver, as Flower gets them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from fleet import Fleet, eventually
from proj.graphs import line
from support.builders import a_scan

from docket_celery.run.document import RunStatus
from docket_celery.worker.publisher import VEHICLE


class Monitor:
    """Keeps every task event of the fleet, by type."""

    def __init__(self, fleet: Fleet) -> None:
        self.events: list[dict[str, Any]] = []
        self._ended = threading.Event()
        self._fleet = fleet
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> Monitor:
        self._thread.start()
        assert self._listening.wait(20.0)
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._thread.join(10.0)

    def vehicle(self, type: str, name: str = VEHICLE) -> dict[str, Any] | None:
        """The first event of a type about the first vehicle of that name that was received."""
        received = [e for e in self.events if e["type"] == "task-received" and e["name"] == name]
        ours = [e for e in self.events if received and e.get("uuid") == received[0]["uuid"]]
        return next((e for e in ours if e["type"] == type), None)

    def _listen(self) -> None:
        with self._fleet.app.connection_for_read() as connection:
            receiver = self._fleet.app.events.Receiver(connection, handlers={"*": self.events.append})
            with receiver.consumer_context() as (consumed, _channel, _consumers):
                consumed.drain_events(timeout=10.0)  # Subscribes, and hears that it has.
                self._listening.set()
                while not self._ended.is_set():
                    try:
                        consumed.drain_events(timeout=0.2)
                    except TimeoutError:
                        continue


@pytest.fixture
def monitor(fleet: Fleet) -> Iterator[Monitor]:
    with Monitor(fleet) as monitor:
        yield monitor


@pytest.mark.parametrize("settings", [{"docket_orphan_ttl": 120}])
def test_a_vehicle_shows_graph_run_and_attempt_and_its_outcome_as_the_result(fleet: Fleet, monitor: Monitor) -> None:
    run = fleet.start(line("s1", name="order"))
    leases = fleet.docket.storage.runs.claim_due(a_scan(limit=1)).leases
    fleet.worker("w1", "-E", concurrency=1)
    assert fleet.docket.publisher(leases) == 1
    assert fleet.finish(run).status is RunStatus.DONE
    received = eventually(lambda: monitor.vehicle("task-received", f"{VEHICLE}[order]"))
    assert received["args"] == "()"
    assert received["kwargs"] == f"graph=order run={run.id} attempt=1"
    succeeded = eventually(lambda: monitor.vehicle("task-succeeded", f"{VEHICLE}[order]"))
    assert succeeded["result"] == "'parked:terminal'"


@pytest.mark.parametrize("settings", [{"docket_refill": "broker", "docket_orphan_ttl": 120}])
def test_in_a_refill_by_message_each_run_is_driven_by_one_of_its_own(fleet: Fleet, monitor: Monitor) -> None:
    runs = [fleet.start(line("s1", name="order")) for _ in range(5)]
    leases = fleet.docket.storage.runs.claim_due(a_scan(limit=1)).leases
    fleet.worker("w1", "-E", concurrency=1)
    assert fleet.docket.publisher(leases) == 1
    assert {fleet.finish(run).status for run in runs} == {RunStatus.DONE}

    def told() -> list[str]:
        received = [e for e in monitor.events if e["type"] == "task-received" and e["name"] == f"{VEHICLE}[order]"]
        return sorted(event["kwargs"] for event in received)

    assert eventually(lambda: len(told()) >= len(runs))
    assert told() == sorted(f"graph=order run={run.id} attempt=1" for run in runs)


def test_a_nudge_shows_what_it_is_and_the_run_that_its_slot_took_with_the_result(
    fleet: Fleet, monitor: Monitor
) -> None:
    fleet.worker("w1", "-E", concurrency=1)
    run = fleet.start(line("s1", name="order"))
    assert fleet.finish(run).status is RunStatus.DONE
    received = eventually(lambda: monitor.vehicle("task-received"))
    assert (received["args"], received["kwargs"]) == ("()", "nudge")
    succeeded = eventually(lambda: monitor.vehicle("task-succeeded"))
    assert succeeded["result"] == f"'claimed 1; graph=order run={run.id} parked:terminal'"


def test_no_event_shows_a_token_or_a_value(fleet: Fleet, monitor: Monitor) -> None:
    fleet.worker("w1", "-E", concurrency=1)
    run = fleet.start(line("gate1"))
    eventually(lambda: fleet.executions(run))
    token: str = fleet.rows("SELECT claim_token FROM docket.runs")[0][0]
    fleet.open_gate("gate1")
    assert fleet.finish(run).status is RunStatus.DONE
    eventually(lambda: monitor.vehicle("task-succeeded"))
    text = repr(monitor.events)
    assert run.id in text
    assert token not in text
    assert "claim_token" not in text


@pytest.mark.parametrize("settings", [{"docket_orphan_ttl": 120}])
def test_the_names_that_a_monitor_lists_are_few(fleet: Fleet, monitor: Monitor) -> None:
    runs = [fleet.start(line("s1", name="order")) for _ in range(10)]
    assert fleet.docket.publisher(fleet.docket.storage.runs.claim_due(a_scan(limit=1)).leases) == 1
    fleet.worker("w1", "-E")
    fleet.beat()
    for run in runs:
        assert fleet.finish(run).status is RunStatus.DONE

    def names() -> set[str]:
        return {event["name"] for event in monitor.events if event["type"] == "task-received"}

    eventually(lambda: len(names()) >= 3)
    assert names() == {VEHICLE, f"{VEHICLE}[order]", "docket_celery.dispatch"}
