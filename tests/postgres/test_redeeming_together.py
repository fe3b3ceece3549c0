"""Redemptions of one process that meet go in one statement, and come to what they would have come to one by one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace
from support.builders import TTL, a_scan
from support.clock import eventually
from support.meeting import LONG, TIME_LIMITS, Meetings, end_statements_of_many
from support.scene import Scene

from docket_celery.errors import CorruptRecord, StaleFence
from docket_celery.storage.contracts.claims import Lease, Redeemed


@pytest.fixture
def meet(place: Scene) -> Meetings:
    return Meetings(place.runs, "_redemptions")


def leased(place: Scene, *run_ids: str, **parts: Any) -> dict[str, Lease]:
    """Starts the runs and leases them all."""
    for run_id in run_ids:
        place.start(run_id, **parts)
    return {lease.run_id: lease for lease in place.runs.claim_due(a_scan(limit=len(run_ids))).leases}


def redeem(place: Scene, lease: Lease, token: str) -> Callable[[], Redeemed]:
    return lambda: place.runs.redeem_claim(lease, token=token)


def kinds(done: list[Any]) -> list[type]:
    return [type(one) for one in done]


def of_redeeming(meet: Meetings) -> list[str]:
    return [name for name in meet.statements if name.startswith("redeem")]


def test_leases_that_are_redeemed_at_the_same_time_go_in_one_statement_and_each_gets_its_own_run(
    place: Scene, meet: Meetings
) -> None:
    leases = leased(place, "a", "b", "c", fields={"n": 1, "text": 'q"uo\\te'})
    done = meet(*(redeem(place, lease, f"for {name}") for name, lease in leases.items()))
    assert of_redeeming(meet) == ["redeem_claims"]
    assert [(one.run.id, one.claim_token, one.claim_attempt) for one in done] == [
        (name, f"for {name}", 1) for name in leases
    ]
    assert [one.run for one in done] == [place.run(name) for name in leases]
    assert [place.commit(name, f"for {name}").checkpoint_seq for name in leases] == [2, 2, 2]


def test_together_they_are_told_what_one_is_told_alone(place: Scene, meet: Meetings) -> None:
    leases = leased(place, "a", "b", "c", fields={"n": 1})
    place.clock.advance(TTL.total_seconds() / 2)
    together = meet(*(redeem(place, leases[name], "chosen" + name) for name in "ab"))
    alone = redeem(place, leases["c"], "chosenc")()
    assert of_redeeming(meet) == ["redeem_claims", "redeem_claim"]
    for name, one in zip("ab", together, strict=True):
        assert one == replace(alone, claim_token=f"chosen{name}", run=replace(alone.run, id=name))
    assert {place.info(name).claimed_at for name in "abc"} == {alone.claimed_at} == {place.now}


def test_a_young_claim_keeps_its_time_in_company_too(place: Scene, meet: Meetings) -> None:
    leases = leased(place, "a", "b")
    began = place.now
    place.clock.advance(1)
    done = meet(*(redeem(place, lease, name) for name, lease in leases.items()))
    assert [(one.claimed_at, one.now) for one in done] == [(began, place.now)] * 2


def test_one_that_cannot_be_redeemed_is_refused_and_the_others_are_not(place: Scene, meet: Meetings) -> None:
    leases = leased(place, "a", "token", "seq", "mutated", "b")
    place.runs.release_claims([("token", leases["token"].claim_token)])
    leases["seq"] = replace(leases["seq"], checkpoint_seq=7)
    place.mutate("mutated")
    done = meet(*(redeem(place, lease, f"for {name}") for name, lease in leases.items()))
    assert dict(zip(leases, kinds(done), strict=True)) == {
        "a": Redeemed, "token": StaleFence, "seq": StaleFence, "mutated": StaleFence, "b": Redeemed,
    }  # fmt: skip


def test_a_lease_that_came_twice_is_redeemed_once(place: Scene, meet: Meetings) -> None:
    leases = leased(place, "a", "b")
    done = meet(redeem(place, leases["a"], "one"), redeem(place, leases["a"], "other"), redeem(place, leases["b"], "b"))
    assert sorted(one.__name__ for one in kinds(done)) == ["Redeemed", "Redeemed", "StaleFence"]
    winner = "one" if isinstance(done[0], Redeemed) else "other"
    assert place.info("a").claim_attempts == 1
    assert place.commit("a", winner).checkpoint_seq == 2


def test_a_run_that_cannot_be_read_is_its_own_vehicles_trouble(
    place: Scene, meet: Meetings, beside: psycopg.Connection
) -> None:
    leases = leased(place, "a", "b", "c")
    beside.execute("UPDATE runs SET state = '{\"v\": 99}' WHERE id = 'b'")
    done = meet(*(redeem(place, lease, name) for name, lease in leases.items()))
    assert kinds(done) == [Redeemed, CorruptRecord, Redeemed]
    assert place.runs.release_claim("b", "b") is None


def test_a_locked_row_is_passed_by_and_only_its_own_redemption_waits(
    place: Scene, meet: Meetings, beside: psycopg.Connection
) -> None:
    leases = leased(place, "a", "b", "c")
    calls = [redeem(place, lease, name) for name, lease in leases.items()]
    with ThreadPoolExecutor(4) as pool:
        with psycopg.connect(beside.info.dsn) as mine:
            mine.execute("SELECT FROM docket.runs WHERE id = 'b' FOR UPDATE")
            with meet.gathering(pool):
                a, b, c = meet.begin(calls, pool)
            assert [type(future.result(LONG)) for future in (a, c)] == [Redeemed] * 2
            eventually(lambda: beside.execute("SELECT FROM pg_locks WHERE NOT granted").fetchall())
            assert not b.done()
        assert isinstance(b.result(LONG), Redeemed)


def test_after_a_lost_reply_all_are_redeemed_and_counted_once(
    place: Scene, meet: Meetings, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = leased(place, "a", "b", "c")
    database = place.runs._database  # type: ignore[attr-defined]
    original, lost = database.execute, []

    def execute(session: Any, name: str, parameters: dict[str, Any], **options: Any) -> Any:
        cursor = original(session, name, parameters, **options)
        if name == "redeem_claims" and not lost:
            lost.append(name)
            session.pgconn.finish()
            raise psycopg.OperationalError("the connection was lost after the statement")
        return cursor

    monkeypatch.setattr(database, "execute", execute)
    done = meet(*(redeem(place, lease, name) for name, lease in leases.items()))
    assert lost == ["redeem_claims"]
    assert [(one.run.id, one.claim_attempt) for one in done] == [("a", 1), ("b", 1), ("c", 1)]


@pytest.mark.parametrize(("code", "tries"), TIME_LIMITS)
def test_what_the_server_ends_because_there_are_so_many_is_done_one_by_one(
    place: Scene, meet: Meetings, beside: psycopg.Connection, code: str, tries: int
) -> None:
    leases = leased(place, "a", "b")
    end_statements_of_many(beside, code)
    assert kinds(meet(*(redeem(place, lease, name) for name, lease in leases.items()))) == [Redeemed] * 2
    assert of_redeeming(meet) == [*["redeem_claims"] * tries, *["redeem_claim"] * 2]
