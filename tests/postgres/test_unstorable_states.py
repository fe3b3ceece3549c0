"""What the store refuses for good becomes the run's own failure, in one drain and without a crash."""

from __future__ import annotations

import pytest
from support.rig import Rig
from support.scene import Scene

from docket_celery import START, Graph, Interrupt
from docket_celery.errors import RowRefused
from docket_celery.run.document import RunStatus
from docket_celery.storage.postgres.database import Database
from docket_celery.vehicle.outcomes import Parked


def test_an_answer_schema_that_is_no_json_fails_the_run_and_not_its_vehicle(place: Scene) -> None:
    graph = Graph("nan").field("answer", float)
    graph = graph.node("a", lambda: Interrupt("answer", schema={"enum": [float("nan")]})).edge(START, "a")
    rig = Rig(storage=place.storage, clock=place.clock)
    rig.start(graph)
    assert rig.drain() == Parked(park="terminal")
    run = rig.run()
    assert run.status is RunStatus.FAILED
    assert run.failure is not None
    assert run.failure.code == "value_refused"
    assert "schema.enum[0]: is nan, which JSON does not have" in run.failure.message
    assert (rig.info().claim_attempts, rig.info().claimed_at) == (0, None)


@pytest.mark.parametrize(
    "value", ["chr(0)", "'{\"a\": \"\\u0000\"}'::jsonb ->> 'a'", "1 / 0"], ids=["limit", "text", "number"]
)
def test_a_value_that_the_database_cannot_hold_is_told_apart_from_an_outage(postgres_url: str, value: str) -> None:
    database = Database(postgres_url, schema="docket", max_connections=1)
    with pytest.raises(RowRefused, match="cannot hold a value"):
        database.run(lambda session, _: session.execute(f"SELECT {value}"))  # type: ignore[call-overload]
