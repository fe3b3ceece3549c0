"""Commits of one process that meet go in one statement, and come to what they would have come to one by one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace
from support.builders import TTL, a_commit, a_scan
from support.clock import eventually
from support.meeting import LONG, TIME_LIMITS, Meetings, end_statements_of_many
from support.scene import RETAIN, Scene

from docket_celery.errors import EventConflict, StaleFence, StoreUnavailable
from docket_celery.run.document import RunStatus
from docket_celery.run.moment import Appended, Replaced
from docket_celery.storage.contracts.claims import Demand, Redeemed
from docket_celery.storage.contracts.taking import Taken, TakeRequest
from docket_celery.storage.contracts.values import SYSTEM, CommitProposal, Committed, Release, Scope
from docket_celery.storage.postgres import open_storage
from docket_celery.storage.postgres.together import HEAVY


@pytest.fixture
def meet(place: Scene) -> Meetings:
    return Meetings(place.runs)


def held(place: Scene, *run_ids: str, **parts: Any) -> dict[str, str]:
    """Starts the runs and takes each; their tokens."""
    tokens = {}
    for run_id in run_ids:
        place.start(run_id, **parts)
        token = place.ids.token()
        assert place.runs.take_due(a_scan(limit=1, preference="ready"), token=token).batch.leases[0].run_id == run_id
        tokens[run_id] = token
    return tokens


def wanted(token: str, **parts: Any) -> TakeRequest:
    return TakeRequest(policy=a_scan(**{"limit": 1, **parts}), token=token)


def commit(
    place: Scene, proposal: CommitProposal, take: TakeRequest | None = None, scope: Scope = SYSTEM
) -> Callable[[], Committed]:
    return lambda: place.runs.commit(scope, proposal, take=take)


def ending(place: Scene, run_id: str, token: str, **parts: Any) -> CommitProposal:
    return a_commit(place.run(run_id), token, at=place.now, **{"status": RunStatus.DONE, **parts})


def along(done: Committed) -> str | None:
    """The run that came along."""
    return None if done.taken is None else done.taken.batch.leases[0].run_id


def rows(connection: psycopg.Connection, table: str = "runs", columns: str = "*") -> list[dict[str, Any]]:
    return connection.execute(f"SELECT {columns} FROM {table} ORDER BY 1, 2, 3".encode()).fetchall()


# -- one statement ----------------------------------------------------------------------------------------------------


def test_commits_that_come_while_another_waits_in_the_server_go_in_one_transaction(
    place: Scene, meet: Meetings, beside: psycopg.Connection
) -> None:
    tokens = held(place, "first", "a", "b", "c")
    ways: dict[str, dict[str, Any]] = {
        "first": {},
        "a": {"schedule": RETAIN},
        "b": {"status": RunStatus.DONE},
        "c": {"schedule": Release(kind="at", at=place.now + TTL)},
    }
    calls = {name: commit(place, a_commit(place.run(name), tokens[name], at=place.now, **ways[name])) for name in ways}
    with ThreadPoolExecutor(4) as pool:
        with psycopg.connect(beside.info.dsn) as mine:
            mine.execute("SELECT FROM docket.runs WHERE id = 'first' FOR UPDATE")
            first = pool.submit(calls["first"])
            eventually(lambda: beside.execute("SELECT FROM pg_locks WHERE NOT granted").fetchall())
            others = meet.begin([calls["a"], calls["b"], calls["c"]], pool)
        assert [type(future.result(LONG)) for future in [first, *others]] == [Committed] * 4
    written = {row["id"]: row["xmin"] for row in rows(beside, columns="id, status, step, xmin::text")}
    assert written["a"] == written["b"] == written["c"] != written["first"]
    assert [name for name in meet.statements if name.startswith("commit_")] == ["commit_release", "commit_all"]


def test_the_statement_is_the_one_that_writes_just_what_they_need(place: Scene, meet: Meetings) -> None:
    tokens = held(place, "a", "b")
    written: dict[str, dict[str, Any]] = {
        "commit_all": {},
        "commit_all_replacing": {"fields": {"n": 1}},
        "commit_all_appending": {"fields": {"log": ["x"]}, "changes": (Appended(name="log", items=("x",)),)},
        "commit_all_changing": {
            "fields": {"n": 2, "log": ["x", "y"]},
            "changes": (Replaced(name="n", value=2), Appended(name="log", items=("y",))),
        },
    }
    for name, parts in written.items():
        meet.statements.clear()
        one = commit(place, a_commit(place.run("a"), tokens["a"], at=place.now, schedule=RETAIN, **parts))
        other = commit(place, a_commit(place.run("b"), tokens["b"], at=place.now, schedule=RETAIN))
        assert [type(done) for done in meet(one, other)] == [Committed] * 2
        assert [statement for statement in meet.statements if statement.startswith("commit_")] == [name]
    assert place.run("a").fields == {"n": 2, "log": ["x", "y"]}


# -- the same outcomes ------------------------------------------------------------------------------------------------


def test_an_event_that_is_already_there_fails_its_own_commit_and_no_other(
    place: Scene, meet: Meetings, beside: psycopg.Connection
) -> None:
    tokens = held(place, "a", "b", "c")
    beside.execute("INSERT INTO run_events (run_id, seq, type, step, at, data) VALUES ('b', 2, 'x', 1, now(), '{}')")
    a, b, c = meet(*(commit(place, ending(place, name, token, fields={"n": 1})) for name, token in tokens.items()))
    assert [type(done) for done in (a, b, c)] == [Committed, EventConflict, Committed]
    assert [place.run(name).checkpoint_seq for name in "abc"] == [2, 1, 2]
    assert place.run("b").fields == {}


def test_two_commits_of_one_run_that_meet_are_one_that_succeeds_and_one_that_is_stale(
    place: Scene, meet: Meetings
) -> None:
    tokens = held(place, "a", "b")
    rivals = [ending(place, "a", tokens["a"], fields={"by": name}) for name in ("one", "other")]
    done = meet(commit(place, rivals[0]), commit(place, rivals[1]), commit(place, ending(place, "b", tokens["b"])))
    assert sorted(type(one).__name__ for one in done) == ["Committed", "Committed", "StaleFence"]
    assert place.run("a").fields["by"] == ("one" if isinstance(done[0], Committed) else "other")
    assert len(place.storage.events.list_events(SYSTEM, "a").events) == 2


def test_a_commit_that_meets_its_own_repeat_has_succeeded_once(place: Scene, meet: Meetings) -> None:
    tokens = held(place, "a")
    place.clock.advance(1)
    place.start("next")
    call = commit(place, ending(place, "a", tokens["a"]), wanted("token"))
    one, other = meet(call, call)
    assert (along(one), along(other)) == ("next", "next")
    assert place.info("next").claim_attempts == 1
    assert len(place.storage.events.list_events(SYSTEM, "a").events) == 2


def test_what_arrived_in_the_inbox_since_it_was_read_wakes_its_own_run_at_once(
    place: Scene, meet: Meetings, beside: psycopg.Connection
) -> None:
    tokens = held(place, "a", "b", "c")
    beside.execute("UPDATE runs SET inbox_seq = 7")
    later = Release(kind="at", at=place.now + TTL)
    consumed = {"a": 7, "b": 6, "c": 0}
    schedules = {"a": later, "b": later, "c": RETAIN}
    meet(
        *(
            commit(
                place,
                a_commit(place.run(name), token, at=place.now, schedule=schedules[name], inbox_seq=consumed[name]),
            )
            for name, token in tokens.items()
        )
    )
    assert [place.info(name).wake_at for name in "abc"] == [later.at, place.now, None]


def test_an_inbox_that_fills_while_the_statement_waits_for_nothing_is_seen(
    place: Scene, meet: Meetings, beside: psycopg.Connection
) -> None:
    """The row is locked by whoever delivers: its commit goes alone, waits, and wakes at once."""
    tokens = held(place, "a", "b")
    later = Release(kind="at", at=place.now + TTL)
    calls = [commit(place, a_commit(place.run(n), token, at=place.now, schedule=later)) for n, token in tokens.items()]
    with ThreadPoolExecutor(3) as pool:
        with psycopg.connect(beside.info.dsn) as mine:
            mine.execute("UPDATE docket.runs SET inbox_seq = inbox_seq + 1 WHERE id = 'a'")
            with meet.gathering(pool):
                a, b = meet.begin(calls, pool)
            assert isinstance(b.result(LONG), Committed)
            eventually(lambda: beside.execute("SELECT FROM pg_locks WHERE NOT granted").fetchall())
            assert not a.done()
        assert isinstance(a.result(LONG), Committed)
    assert [place.info(name).wake_at for name in "ab"] == [place.now, later.at]


def test_large_values_go_alone_and_the_others_together(
    place: Scene, meet: Meetings, beside: psycopg.Connection
) -> None:
    sizes = {"a": 1, "large": HEAVY, "b": HEAVY - 100}
    tokens = held(place, *sizes)
    calls = [
        commit(place, ending(place, name, tokens[name], fields={"text": "x" * size})) for name, size in sizes.items()
    ]
    assert [type(done) for done in meet(*calls)] == [Committed] * 3
    assert [len(place.run(name).fields["text"]) for name in sizes] == [*sizes.values()]
    written = {row["id"]: row["xmin"] for row in rows(beside, columns="id, status, step, xmin::text")}
    assert written["a"] == written["b"] != written["large"]


@pytest.mark.parametrize(("code", "tries"), TIME_LIMITS)
def test_what_the_server_ends_because_there_are_so_many_is_done_one_by_one(
    place: Scene, meet: Meetings, beside: psycopg.Connection, code: str, tries: int
) -> None:
    tokens = held(place, "a", "b", "c")
    end_statements_of_many(beside, code)
    done = meet(*(commit(place, ending(place, name, token)) for name, token in tokens.items()))
    assert [type(one) for one in done] == [Committed] * 3
    commits = [name for name in meet.statements if name.startswith("commit_")]
    assert commits == [*["commit_all"] * tries, *["commit_release"] * 3]


# -- locked rows ------------------------------------------------------------------------------------------------------


def test_a_locked_row_is_passed_by_and_only_its_own_commit_waits(
    place: Scene, meet: Meetings, beside: psycopg.Connection
) -> None:
    tokens = held(place, "a", "b", "c")
    calls = [commit(place, ending(place, name, token)) for name, token in tokens.items()]
    with ThreadPoolExecutor(4) as pool:
        with psycopg.connect(beside.info.dsn) as mine:
            mine.execute("SELECT FROM docket.runs WHERE id = 'b' FOR UPDATE")
            with meet.gathering(pool):
                a, b, c = meet.begin(calls, pool)
            assert [type(future.result(LONG)) for future in (a, c)] == [Committed] * 2
            eventually(lambda: beside.execute("SELECT FROM pg_locks WHERE NOT granted").fetchall())
            assert not b.done()
        assert isinstance(b.result(LONG), Committed)
    assert {place.run(name).status for name in "abc"} == {RunStatus.DONE}


def test_a_first_commit_that_waits_for_its_row_does_not_hold_up_the_others(
    place: Scene, beside: psycopg.Connection
) -> None:
    tokens = held(place, "locked", "a", "b", "c")
    calls = {name: commit(place, ending(place, name, token)) for name, token in tokens.items()}
    with ThreadPoolExecutor(4) as pool:
        with psycopg.connect(beside.info.dsn) as mine:
            mine.execute("SELECT FROM docket.runs WHERE id = 'locked' FOR UPDATE")
            locked = pool.submit(calls["locked"])
            eventually(lambda: beside.execute("SELECT FROM pg_locks WHERE NOT granted").fetchall())
            others = [pool.submit(calls[name]) for name in "abc"]
            assert [type(future.result(10)) for future in others] == [Committed] * 3
            assert not locked.done()
        assert isinstance(locked.result(LONG), Committed)


def test_groups_of_two_processes_with_the_same_runs_in_other_orders_never_deadlock(
    place: Scene, meet: Meetings, postgres_url: str, beside: psycopg.Connection
) -> None:
    other = Meetings((twin := Scene(open_storage(postgres_url, now=place.clock.now), place.clock, place.ids)).runs)
    names = [f"run-{number}" for number in range(8)]
    tokens = held(place, *names)
    for _ in range(15):
        proposals = [a_commit(place.run(name), tokens[name], at=place.now, schedule=RETAIN) for name in names]
        with ThreadPoolExecutor(2) as pool:
            mine = pool.submit(meet, *(commit(place, proposal) for proposal in proposals))
            theirs = pool.submit(
                other,
                *(commit(twin, replace(proposal, commit_id=f"{proposal.commit_id}-")) for proposal in proposals[::-1]),
            )
            outcomes = list(zip(mine.result(LONG), theirs.result(LONG)[::-1], strict=True))
        assert {frozenset(map(type, pair)) for pair in outcomes} == {frozenset({Committed, StaleFence})}
    assert {place.run(name).checkpoint_seq for name in names} == {16}
    deadlocks = beside.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").fetchone()
    assert deadlocks == {"deadlocks": 0}


# -- lost replies -----------------------------------------------------------------------------------------------------


def lose_replies(place: Scene, monkeypatch: pytest.MonkeyPatch, *statements: str, times: int = 1) -> list[str]:
    """The next executions of these statements take effect, and their connection is gone before the reply is read."""
    database = place.runs._database  # type: ignore[attr-defined]
    original = database.execute
    lost: list[str] = []

    def execute(session: Any, name: str, parameters: dict[str, Any], **options: Any) -> Any:
        cursor = original(session, name, parameters, **options)
        if name in statements and len(lost) < times:
            lost.append(name)
            session.pgconn.finish()
            raise psycopg.OperationalError("the connection was lost after the commit")
        return cursor

    monkeypatch.setattr(database, "execute", execute)
    return lost


def test_after_a_lost_reply_every_commit_of_the_group_is_recognised_as_its_own(
    place: Scene, meet: Meetings, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = held(place, "a", "b", "c")
    ways = {"a": {"schedule": RETAIN}, "b": {"status": RunStatus.DONE}, "c": {}}
    calls = [commit(place, a_commit(place.run(n), tokens[n], at=place.now, **ways[n])) for n in tokens]  # type: ignore[arg-type]
    lost = lose_replies(place, monkeypatch, "commit_all")
    assert [type(done) for done in meet(*calls)] == [Committed] * 3
    assert lost == ["commit_all"]
    assert [place.run(name).checkpoint_seq for name in "abc"] == [2, 2, 2]
    assert [len(place.storage.events.list_events(SYSTEM, name).events) for name in "abc"] == [2, 2, 2]


def test_after_a_lost_reply_each_finds_who_came_along_with_it_and_nobody_is_stranded(
    place: Scene, meet: Meetings, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = held(place, "a", "b", "c")
    for number in range(5):
        place.clock.advance(1)
        place.start(f"next-{number}")
    lost = lose_replies(place, monkeypatch, "commit_all_and_take")
    done = meet(*(commit(place, ending(place, n, token), wanted(f"for {n}")) for n, token in tokens.items()))
    assert lost == ["commit_all_and_take"]
    assert sorted(str(along(one)) for one in done) == ["next-0", "next-1", "next-2"]
    for name, one in zip(tokens, done, strict=True):
        assert isinstance(one, Committed)
        assert one.taken is not None
        assert isinstance(one.taken.claim, Redeemed)
        run = one.taken.claim.run
        assert (one.taken.claim.claim_token, one.taken.claim.claim_attempt) == (f"for {name}", 1)
        assert place.commit(run.id, f"for {name}", status=RunStatus.DONE).checkpoint_seq == 2
    assert [place.info(f"next-{number}").claimed_at for number in (3, 4)] == [None, None]


def test_a_group_whose_reply_is_lost_for_good_is_recognised_when_each_commit_is_repeated(
    place: Scene, meet: Meetings, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = held(place, "a", "b")
    place.clock.advance(1)
    place.start("next")
    calls = [commit(place, ending(place, name, token), wanted(f"for {name}")) for name, token in tokens.items()]
    with monkeypatch.context() as patched:
        lost = lose_replies(place, patched, "commit_all_and_take", times=2)
        assert [type(done) for done in meet(*calls)] == [StoreUnavailable] * 2
    assert len(lost) == 2
    done = meet(*calls)
    assert sorted(str(along(one)) for one in done) == ["None", "next"]
    assert (place.info("next").claim_attempts, place.info("next").claim_redeemed) == (1, True)
    assert [place.run(name).checkpoint_seq for name in "ab"] == [2, 2]


# -- who comes along --------------------------------------------------------------------------------------------------


def ready(place: Scene, *run_ids: str) -> None:
    for run_id in run_ids:
        place.clock.advance(1)
        place.start(run_id)


def test_each_that_frees_a_slot_gets_the_next_run_in_the_order_of_age(place: Scene, meet: Meetings) -> None:
    tokens = held(place, "a", "b", "c", "kept")
    ready(place, "1", "2", "3", "4")
    calls = [commit(place, ending(place, name, tokens[name]), wanted(f"for {name}")) for name in ("c", "a")]
    calls.append(commit(place, a_commit(place.run("kept"), tokens["kept"], at=place.now, schedule=RETAIN), wanted("x")))
    calls.append(commit(place, ending(place, "b", tokens["b"])))
    assert [along(done) for done in meet(*calls)] == ["1", "2", None, None]
    assert [place.info(name).claim_redeemed for name in "1234"] == [True, True, False, False]
    assert place.commit("1", "for c", schedule=RETAIN).checkpoint_seq == 2
    assert place.commit("2", "for a", schedule=RETAIN).checkpoint_seq == 2


def test_who_came_along_is_whole(place: Scene, meet: Meetings) -> None:
    tokens = held(place, "a", "b")
    place.clock.advance(1)
    place.start("next", tenant="acme", fields={"n": 1, "log": ["x"]})
    done, other = meet(*(commit(place, ending(place, n, token), wanted(f"for {n}")) for n, token in tokens.items()))
    assert (along(done), along(other)) == ("next", None)
    taken: Taken = done.taken
    (lease,) = taken.batch.leases
    assert isinstance(taken.claim, Redeemed)
    assert (taken.claim.run, lease.tenant, lease.orphan_ttl) == (place.run("next"), "acme", TTL)
    assert (lease.claim_token, lease.claimed_at, taken.claim.claimed_at) == ("for a", place.now, place.now)


def test_when_fewer_are_due_than_asked_for_the_others_get_nobody(place: Scene, meet: Meetings) -> None:
    tokens = held(place, "a", "b", "c")
    ready(place, "1")
    place.start("not yet", schedule=Release(kind="at", at=place.now + TTL))
    done = meet(*(commit(place, ending(place, n, token), wanted(f"for {n}")) for n, token in tokens.items()))
    assert [along(one) for one in done] == ["1", None, None]


def test_a_refused_commit_brings_nobody_along_and_takes_nobodys_turn(place: Scene, meet: Meetings) -> None:
    tokens = held(place, "a", "b")
    ready(place, "1", "2")
    refused, done = meet(
        commit(place, replace(ending(place, "a", "another's"), claim_token="another's"), wanted("for a")),
        commit(place, ending(place, "b", tokens["b"]), wanted("for b")),
    )
    assert isinstance(refused, StaleFence)
    assert along(done) == "1"
    assert place.info("2").claimed_at is None


@pytest.mark.parametrize(("slots", "expected"), [(1, 0), (2, 0), (3, 1), (4, 2), (5, 2), (9, 2)])
def test_no_more_come_along_than_there_are_free_slots(place: Scene, meet: Meetings, slots: int, expected: int) -> None:
    tokens = held(place, "other", "another", "a", "b")
    ready(place, "1", "2", "3")
    demand = Demand(gate="refill", slots=slots)
    done = meet(*(commit(place, ending(place, n, tokens[n]), wanted(f"for {n}", demand=demand)) for n in "ab"))
    assert sum(along(one) is not None for one in done) == expected


def test_a_commit_that_was_to_free_a_slot_and_was_refused_frees_none(place: Scene, meet: Meetings) -> None:
    tokens = held(place, "other", "a", "b")
    ready(place, "1")
    demand = Demand(gate="refill", slots=2)
    stale = commit(place, ending(place, "a", "not its token"), wanted("for a", demand=demand))
    refused, done = meet(stale, commit(place, ending(place, "b", tokens["b"]), wanted("for b", demand=demand)))
    assert isinstance(refused, StaleFence)
    assert along(done) is None


@pytest.mark.parametrize("preference", ["ready", "expired", None])
def test_an_expired_claim_has_its_turn(place: Scene, meet: Meetings, preference: Any) -> None:
    held(place, "abandoned")
    place.expire()
    tokens = held(place, "a", "b")
    ready(place, "1", "2")
    calls = [
        commit(place, ending(place, "a", tokens["a"]), wanted("for a", preference=preference)),
        commit(place, ending(place, "b", tokens["b"]), wanted("for b", preference="ready")),
    ]
    assert [along(done) for done in meet(*calls)] == (["1", "2"] if preference == "ready" else [None, "1"])
    assert place.info("abandoned").claim_attempts == 1


def test_a_run_whose_attempts_are_used_up_does_not_come_along(place: Scene, meet: Meetings) -> None:
    tokens = held(place, "a", "b")
    place.start("spent")
    for number in range(3):
        place.runs.take_due(a_scan(limit=1), token=f"token-{number}")
        place.runs.release_claim("spent", f"token-{number}")
    ready(place, "fresh")
    done = meet(*(commit(place, ending(place, n, token), wanted(f"for {n}")) for n, token in tokens.items()))
    assert [along(one) for one in done] == [None, "fresh"]
    assert (place.info("spent").poisoned_at, place.info("spent").claimed_at) == (None, None)


def test_requests_of_another_policy_ask_again_by_themselves(place: Scene, meet: Meetings) -> None:
    tokens = held(place, "a", "b", "c")
    ready(place, "1", "2", "3")
    policies: dict[str, dict[str, Any]] = {"a": {}, "b": {"max_claim_attempts": 9}, "c": {"order": "tenants"}}
    done = meet(
        *(commit(place, ending(place, n, token), wanted(f"for {n}", **policies[n])) for n, token in tokens.items())
    )
    assert [along(one) for one in done] == ["1", None, None]


def test_a_locked_ready_run_is_passed_by(place: Scene, meet: Meetings, beside: psycopg.Connection) -> None:
    tokens = held(place, "a", "b")
    ready(place, "1", "2", "3")
    calls = [commit(place, ending(place, n, token), wanted(f"for {n}")) for n, token in tokens.items()]
    with beside.transaction():
        beside.execute("SELECT FROM runs WHERE id = '1' FOR UPDATE")
        assert [along(done) for done in meet(*calls)] == ["2", "3"]


def test_a_run_that_moved_on_while_the_group_was_held_up_does_not_come_along_with_its_old_values(
    place: Scene, meet: Meetings, postgres_url: str, beside: psycopg.Connection
) -> None:
    rival = Scene(open_storage(postgres_url, now=place.clock.now), place.clock, place.ids)
    tokens = held(place, "a", "b")
    ready(place, "moving", "still")
    beside.execute(
        "CREATE FUNCTION held_up() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NEW; END $$"
    )
    beside.execute(
        "CREATE TRIGGER held_up BEFORE UPDATE ON runs FOR EACH ROW WHEN (NEW.id = 'a') EXECUTE FUNCTION held_up()"
    )
    calls = [commit(place, ending(place, n, token), wanted(f"for {n}")) for n, token in tokens.items()]
    with ThreadPoolExecutor(3) as pool:
        beside.execute("SELECT pg_advisory_lock(1)")
        with meet.gathering(pool):
            a, b = meet.begin(calls, pool)
        eventually(lambda: beside.execute("SELECT FROM pg_locks WHERE NOT granted").fetchall())
        rival.runs.take_due(a_scan(limit=1), token="rival")
        rival.commit("moving", "rival", schedule=Release(kind="at", at=place.now - TTL), fields={"n": 2})
        beside.execute("SELECT pg_advisory_unlock(1)")
        came = {along(a.result(LONG)), along(b.result(LONG))}
    assert came == {None, "still"}
    assert (place.info("moving").claimed_at, place.info("still").claim_redeemed) == (None, True)


def test_a_run_that_parks_at_once_does_not_come_along_with_its_own_group(place: Scene, meet: Meetings) -> None:
    tokens = held(place, "a", "b")
    done = meet(
        *(commit(place, a_commit(place.run(n), t, at=place.now), wanted(f"for {n}")) for n, t in tokens.items())
    )
    assert [along(one) for one in done] == [None, None]
    assert [place.info(name).wake_at for name in "ab"] == [place.now] * 2


# -- the claim's time -------------------------------------------------------------------------------------------------


def test_the_claim_time_moves_only_for_a_claim_older_than_a_third_of_its_ttl(place: Scene, meet: Meetings) -> None:
    old = held(place, "old")
    place.clock.advance(timedelta(microseconds=1))
    young = held(place, "young")
    began = place.now
    place.clock.advance(TTL / 3)
    done = meet(
        *(commit(place, a_commit(place.run(n), t, at=place.now, schedule=RETAIN)) for n, t in {**old, **young}.items())
    )
    assert [one.claimed_at for one in done] == [place.now, began]
    assert [place.info(name).claimed_at for name in ("old", "young")] == [place.now, began]


def test_retaining_commits_that_go_together_are_hot_updates(
    place: Scene, meet: Meetings, beside: psycopg.Connection
) -> None:
    tokens = held(place, "a", "b", "c", "d")
    for number in range(25):
        place.clock.advance(0.05)
        meet(
            *(
                commit(place, a_commit(place.run(n), t, at=place.now, schedule=RETAIN, fields={"n": number}))
                for n, t in tokens.items()
            )
        )
    assert meet.statements.count("commit_all_replacing") == 25
    place.runs._database.sessions.close()  # type: ignore[attr-defined]
    updates = "SELECT n_tup_upd AS all, n_tup_hot_upd AS hot FROM pg_stat_user_tables WHERE relname = 'runs'"
    with psycopg.connect(beside.info.dsn, autocommit=True) as watch:
        eventually(lambda: watch.execute(updates.encode()).fetchone()[0] >= 4 + 100)  # type: ignore[index]
        everything, hot = watch.execute(updates.encode()).fetchall()[0]
    assert everything == 4 + 100
    assert hot >= 96
