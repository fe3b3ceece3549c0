"""The wire form of a lease: exact, small, tolerant of what later versions add, and harmless when malformed."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.apps import a_graph

from docket_celery import Docket, RunStatus
from docket_celery.errors import InvalidInput
from docket_celery.storage.contracts.claims import ClaimPolicy, Lease
from docket_celery.worker.messages import from_message, is_accepted, to_message, written_in
from docket_celery.worker.publisher import VEHICLE

LEASE = Lease(
    run_id="run-1",
    tenant=None,
    graph_id="order",
    graph_hash="a" * 64,
    checkpoint_seq=7,
    claim_token="t" * 32,
    claimed_at=datetime(2026, 11, 1, 12, 0, 0, 123456, tzinfo=UTC),
    claim_attempt=2,
    orphan_ttl=timedelta(seconds=60),
)


@pytest.mark.parametrize("tenant", [None, "acme", "ä" * 255])
def test_a_lease_survives_its_trip_through_json(tenant: str | None) -> None:
    lease = Lease(**{**{name: getattr(LEASE, name) for name in LEASE.__slots__}, "tenant": tenant})
    assert from_message(json.loads(json.dumps(to_message(lease)))) == lease


@pytest.mark.parametrize(
    ("accept_content", "accepted"),
    [
        (["json"], True),
        (["application/json"], True),
        ({"pickle", "json"}, True),
        (None, True),
        (["pickle", "application/x-yaml"], False),
        (["auth"], False),
        ([], False),
    ],
)
def test_what_an_app_accepts_tells_whether_a_lease_is_read(accept_content: Any, accepted: bool) -> None:
    assert is_accepted(accept_content, written_in("pickle")) is accepted


@pytest.mark.parametrize(
    ("accept_content", "accepted"),
    [(["auth"], True), (["application/data", "json"], True), (None, True), (["json"], False)],
)
def test_an_app_that_signs_its_messages_reads_leases_that_are_signed(accept_content: Any, accepted: bool) -> None:
    assert is_accepted(accept_content, written_in("auth")) is accepted


def test_a_lease_is_small_whatever_its_run_holds() -> None:
    assert len(json.dumps(to_message(LEASE))) < 500


def test_keys_of_a_later_version_are_ignored() -> None:
    assert from_message({**to_message(LEASE), "colour": "green", "nested": {"a": [1]}}) == LEASE


def _without(key: str) -> dict[str, Any]:
    message = to_message(LEASE)
    del message[key]
    return message


MALFORMED: list[Any] = [
    {},
    [],
    "lease",
    None,
    *(_without(key) for key in to_message(LEASE)),
    {**to_message(LEASE), "checkpoint_seq": "many"},
    {**to_message(LEASE), "checkpoint_seq": float("inf")},
    {**to_message(LEASE), "claim_attempt": None},
    {**to_message(LEASE), "claimed_at": "yesterday"},
    {**to_message(LEASE), "claimed_at": 5},
    {**to_message(LEASE), "orphan_ttl": "long"},
    {**to_message(LEASE), "orphan_ttl": 1e300},
    {**to_message(LEASE), "claimed_at": "2026-11-01T12:00:00"},
    {**to_message(LEASE), "run_id": "a\x00b"},
    {**to_message(LEASE), "claim_token": "a\x00b"},
    {**to_message(LEASE), "claim_token": ""},
    {**to_message(LEASE), "checkpoint_seq": 2**80},
    {**to_message(LEASE), "checkpoint_seq": -1},
    {**to_message(LEASE), "tenant": 5},
]


@pytest.mark.parametrize("message", MALFORMED, ids=range(len(MALFORMED)))
def test_what_is_no_lease_is_refused_as_such(message: Any) -> None:
    with pytest.raises(InvalidInput, match="not a lease"):
        from_message(message)


@pytest.mark.parametrize("message", MALFORMED, ids=range(len(MALFORMED)))
def test_a_malformed_message_ends_its_task_without_an_error(docket: Docket, message: Any) -> None:
    assert docket.app.tasks[VEHICLE](lease=message) == "malformed lease"


@pytest.mark.parametrize(
    "changed",
    [
        {"run_id": "nobody"},
        {"claim_token": "guessed"},
        {"checkpoint_seq": 99},
        {"tenant": "stranger"},
    ],
    ids=repr,
)
def test_a_lease_of_something_else_redeems_nothing_and_ends_harmlessly(docket: Docket, changed: dict[str, Any]) -> None:
    run = docket.start_run(docket.save_graph(a_graph()), {"name": "Ada"})
    lease = {**to_message(LEASE), "run_id": run.id, "checkpoint_seq": run.checkpoint_seq, **changed}
    assert docket.app.tasks[VEHICLE](lease=lease) == "fence_lost"
    assert docket.fetch_run(run.id) == run


def test_a_task_takes_arguments_that_a_later_version_adds(docket: Docket) -> None:
    docket.drain()
    run = docket.start_run(docket.save_graph(a_graph()), {"name": "Ada"})
    policy = ClaimPolicy(limit=1, orphan_ttl=docket.engine.orphan_ttl, max_claim_attempts=3)
    (lease,) = docket.storage.runs.claim_due(policy).leases
    assert docket.app.tasks[VEHICLE](lease=to_message(lease), priority="high") == "parked:terminal"
    assert docket.fetch_run(run.id).status is RunStatus.DONE
