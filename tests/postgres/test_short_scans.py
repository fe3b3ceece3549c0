"""A scan for one lease: by the short statement alone where nothing has to be weighed, else by the long one after it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace
from support.builders import a_scan
from support.scene import Scene

from docket_celery.storage.contracts.claims import ClaimPolicy, Demand
from docket_celery.storage.contracts.values import Release
from docket_celery.storage.postgres import open_storage

SHORT, LONG = "lease_ready", "claim_due"


@pytest.fixture
def asked(place: Scene, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the statements that the store sends."""
    return _listened(place, monkeypatch)


def _listened(place: Scene, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    database: Any = place.runs._database  # type: ignore[attr-defined]
    names: list[str] = []
    original = database.execute

    def execute(session: Any, name: str, *arguments: Any, **options: Any) -> Any:
        names.append(name)
        return original(session, name, *arguments, **options)

    monkeypatch.setattr(database, "execute", execute)
    return names


def _one(slots: int | None = 8, **parts: Any) -> ClaimPolicy:
    return a_scan(limit=1, demand=Demand(gate="refill", slots=slots), **parts)


def _ids(place: Scene, policy: ClaimPolicy) -> list[str]:
    return [lease.run_id for lease in place.runs.claim_due(policy).leases]


def _expired(place: Scene, run_id: str, times: int = 1) -> None:
    place.start(run_id)
    for _ in range(times):
        place.hold()
        place.expire()


def test_a_ready_run_is_leased_in_one_exchange_unredeemed_and_uncounted(place: Scene, asked: list[str]) -> None:
    place.start("run-1")
    place.clock.advance(1)
    place.start("run-2", schedule=Release(kind="at", at=place.now + timedelta(seconds=30)))
    asked.clear()
    batch = place.runs.claim_due(_one())
    assert asked == [SHORT]
    (lease,) = batch.leases
    assert (lease.run_id, lease.claim_attempt, batch.stolen, batch.reissued) == ("run-1", 1, 0, 0)
    assert batch.next_wake_at == place.now + timedelta(seconds=30)
    assert (place.info("run-1").claimed_at, place.info("run-1").claim_attempts) == (place.now, 0)
    assert place.runs.redeem_claim(lease, token="mine").claim_attempt == 1


def test_that_nothing_is_due_is_told_in_one_exchange(place: Scene, asked: list[str]) -> None:
    place.start(schedule=Release(kind="at", at=place.now + timedelta(seconds=30)))
    asked.clear()
    batch = place.runs.claim_due(_one())
    assert (asked, batch.leases, batch.scanned) == ([SHORT], (), True)
    assert batch.next_wake_at == place.now + timedelta(seconds=30)


def test_that_no_slot_is_free_is_told_in_one_exchange(place: Scene, asked: list[str]) -> None:
    for run_id in ("run-1", "run-2", "run-3"):
        place.start(run_id)
    place.scan(limit=2)
    asked.clear()
    assert _ids(place, _one(slots=2)) == []
    assert asked == [SHORT]
    assert _ids(place, _one(slots=3)) == ["run-3"]


@pytest.mark.parametrize(("preference", "expected"), [(None, "old"), ("expired", "old"), ("ready", "new")])
def test_an_expired_claim_whose_turn_it_may_be_is_weighed_by_the_long_scan(
    place: Scene, asked: list[str], preference: Any, expected: str
) -> None:
    _expired(place, "old")
    place.start("new")
    asked.clear()
    assert _ids(place, _one(preference=preference)) == [expected]
    assert asked == ([SHORT] if expected == "new" else [SHORT, LONG])


def test_an_expired_claim_is_found_when_nothing_of_the_preferred_class_is_there(place: Scene, asked: list[str]) -> None:
    _expired(place, "old")
    asked.clear()
    assert _ids(place, _one(preference="ready")) == ["old"]
    assert asked == [SHORT, LONG]


def test_a_run_that_has_used_up_its_attempts_is_halted_by_the_long_scan(place: Scene, asked: list[str]) -> None:
    _expired(place, "worn", times=2)
    place.runs.release_claim("worn", place.hold())
    place.clock.advance(1)
    asked.clear()
    batch = place.runs.claim_due(_one(preference="ready"))
    assert ([halted.run_id for halted in batch.poisoned], batch.leases) == (["worn"], ())
    assert asked == [SHORT, LONG]


def test_what_a_rival_holds_is_passed_over(place: Scene, asked: list[str], beside: psycopg.Connection) -> None:
    place.start("run-1")
    place.clock.advance(1)
    place.start("run-2")
    with beside.transaction():
        beside.execute("SELECT FROM runs WHERE id = 'run-1' FOR UPDATE")
        asked.clear()
        assert _ids(place, _one()) == ["run-2"]
        assert _ids(place, _one()) == []
        assert asked == [SHORT, SHORT]
    assert _ids(place, _one()) == ["run-1"]


@pytest.mark.parametrize(
    "policy",
    [
        _one(order="tenants"),
        _one(delivery="direct"),
        a_scan(limit=2, demand=Demand(gate="refill", slots=8)),
        a_scan(limit=1, demand=Demand(gate="nudge", slots=8)),
        a_scan(limit=1, demand=Demand(gate="tick", slots=8)),
    ],
    ids=["tenants", "direct", "two", "nudge", "tick"],
)
def test_other_scans_go_the_long_way_at_once(place: Scene, asked: list[str], policy: ClaimPolicy) -> None:
    place.start()
    asked.clear()
    assert _ids(place, policy) == ["run-1"]
    assert SHORT not in asked


def test_on_a_running_clock_a_full_look_comes_first_and_the_short_statement_after_it(
    postgres_url: str, place: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        place.start(f"run-{number}")
    running = Scene(open_storage(postgres_url), place.clock, place.ids)
    asked = _listened(running, monkeypatch)
    found = _ids(running, _one())
    running.runs._outlook = replace(running.runs._outlook, looked_at=float("inf"))  # type: ignore[attr-defined]
    found += [run_id for _ in range(2) for run_id in _ids(running, _one())]
    assert sorted(found) == ["run-0", "run-1", "run-2"]
    assert asked == [LONG, SHORT, SHORT]


def test_slots_that_hand_on_at_once_lease_every_run_once(place: Scene, postgres_url: str) -> None:
    for number in range(200):
        place.start(f"run-{number}")
    storage = open_storage(postgres_url, max_connections=4, now=place.clock.now)

    def until_nothing_is_due(_: int) -> list[str]:
        found: list[str] = []
        while leases := storage.runs.claim_due(_one(slots=1_000, preference="ready")).leases:
            found += [lease.run_id for lease in leases]
        return found

    with ThreadPoolExecutor(4) as pool:
        found = [run_id for ids in pool.map(until_nothing_is_due, range(4)) for run_id in ids]
    assert len(found) == len(set(found)) == 200
