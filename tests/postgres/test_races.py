"""Two sessions over one row, forced into the order that hurts."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

import psycopg
import pytest
from support.builders import a_commit, a_decision, a_scan, an_abandon, new_commit_id
from support.clock import eventually
from support.scene import RETAIN, Scene

from docket_celery.errors import EventConflict, InactiveRun, StaleFence, StoreUnavailable
from docket_celery.run.document import Run, RunStatus
from docket_celery.runtime.mutations import cancel
from docket_celery.storage.contracts.claims import Redeemed
from docket_celery.storage.contracts.taking import TakeRequest
from docket_celery.storage.contracts.values import (
    SYSTEM,
    Commit,
    CommitProposal,
    Committed,
    MutationDecision,
    NoChange,
    Release,
)
from docket_celery.storage.postgres import open_storage


def _wait_for_lock_wait(watch: psycopg.Connection) -> None:
    """Until some other session of the database waits for a lock."""
    waiting = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    eventually(lambda: watch.execute(waiting).fetchall())


def test_a_commit_that_waits_for_a_steal_finds_its_fence_gone(place: Scene, beside: psycopg.Connection) -> None:
    place.start()
    token = place.hold()
    late = a_commit(place.run(), token, at=place.now, schedule=RETAIN, fields={"total": 1})
    with ThreadPoolExecutor(1) as pool, beside.transaction():
        beside.execute("UPDATE runs SET claim_token = 'thief', claimed_at = claimed_at + interval '1 minute'")
        commit = pool.submit(place.runs.commit, SYSTEM, late)
        with psycopg.connect(beside.info.dsn, autocommit=True) as watch:
            _wait_for_lock_wait(watch)
        beside.execute("SELECT")
        assert not commit.done()
    with pytest.raises(StaleFence, match="not held"):
        commit.result(timeout=60)
    assert place.run().checkpoint_seq == 1
    assert place.run().fields == {}
    assert beside.execute("SELECT count(*) AS n FROM run_events").fetchone() == {"n": 1}


def test_a_steal_skips_the_row_of_a_commit_under_way(place: Scene, beside: psycopg.Connection) -> None:
    place.start()
    place.hold()
    place.expire()
    with beside.transaction():
        beside.execute("UPDATE runs SET checkpoint_seq = checkpoint_seq + 1")
        assert place.scan().leases == ()


@pytest.mark.usefixtures("patient")
def test_a_redemption_that_waits_for_a_mutation_is_refused(place: Scene, beside: psycopg.Connection) -> None:
    place.start()
    lease = place.lease()
    inside, proceed = threading.Event(), threading.Event()

    def decide(run: Run, now: datetime) -> MutationDecision:
        inside.set()
        assert proceed.wait(60)
        return a_decision(run, at=now, fields={"answer": "yes"})

    with ThreadPoolExecutor(2) as pool:
        mutated = pool.submit(place.runs.mutate_run, SYSTEM, "run-1", decide, commit_id=new_commit_id())
        assert inside.wait(60)
        redeemed = pool.submit(place.runs.redeem_claim, lease, token="mine")
        _wait_for_lock_wait(beside)
        proceed.set()
        assert mutated.result(timeout=60).changed
        with pytest.raises(StaleFence):
            redeemed.result(timeout=60)
    assert place.run().fields == {"answer": "yes"}


@pytest.mark.usefixtures("patient")
def test_a_mutation_that_waits_sees_the_values_of_the_commit_it_waited_for(
    place: Scene, beside: psycopg.Connection
) -> None:
    place.start(fields={"total": 1})
    seen: list[Run] = []

    def look(run: Run, now: datetime) -> MutationDecision:
        seen.append(run)
        return NoChange()

    with ThreadPoolExecutor(1) as pool, beside.transaction():
        beside.execute("UPDATE runs SET checkpoint_seq = 2")
        beside.execute("UPDATE run_fields SET value = '2'")
        mutated = pool.submit(place.runs.mutate_run, SYSTEM, "run-1", look, commit_id=new_commit_id())
        with psycopg.connect(beside.info.dsn, autocommit=True) as watch:
            _wait_for_lock_wait(watch)
    assert not mutated.result(timeout=60).changed
    assert [(run.checkpoint_seq, run.fields) for run in seen] == [(2, {"total": 2})]


def test_an_abandon_that_waits_for_a_steal_is_stale_and_leaves_the_thief_alone(
    place: Scene, beside: psycopg.Connection
) -> None:
    place.start()
    token = place.hold()
    with ThreadPoolExecutor(1) as pool, beside.transaction():
        beside.execute("UPDATE runs SET claim_token = 'thief', claimed_at = claimed_at + interval '1 minute'")
        abandoned = pool.submit(place.runs.abandon_claim, "run-1", token, an_abandon())
        with psycopg.connect(beside.info.dsn, autocommit=True) as watch:
            _wait_for_lock_wait(watch)
    assert abandoned.result(timeout=60) == "stale"
    row = beside.execute("SELECT claim_token, claim_abandons, wake_at FROM runs").fetchone()
    assert row == {"claim_token": "thief", "claim_abandons": 0, "wake_at": None}


@pytest.mark.usefixtures("patient")
def test_a_commit_that_waits_for_a_signal_finds_its_fence_gone(place: Scene, beside: psycopg.Connection) -> None:
    place.start()
    token = place.hold()
    late = a_commit(place.run(), token, at=place.now, schedule=RETAIN, fields={"total": 1})
    inside, proceed = threading.Event(), threading.Event()

    def decide(run: Run, now: datetime) -> MutationDecision:
        inside.set()
        assert proceed.wait(60)
        return a_decision(run, at=now, fields={"answer": "yes"})

    with ThreadPoolExecutor(2) as pool:
        mutated = pool.submit(place.runs.mutate_run, SYSTEM, "run-1", decide, commit_id=new_commit_id())
        assert inside.wait(60)
        commit = pool.submit(place.runs.commit, SYSTEM, late)
        _wait_for_lock_wait(beside)
        proceed.set()
        assert mutated.result(timeout=60).changed
        with pytest.raises(StaleFence):
            commit.result(timeout=60)
    assert place.run().fields == {"answer": "yes"}


@pytest.mark.usefixtures("patient")
def test_a_cancel_that_waits_for_the_completion_finds_the_run_ended(place: Scene, beside: psycopg.Connection) -> None:
    place.start()
    with ThreadPoolExecutor(1) as pool, beside.transaction():
        beside.execute(
            "UPDATE runs SET status = 'done', checkpoint_seq = 2, wake_at = NULL, finished_at = clock_timestamp()"
        )
        cancelled = pool.submit(
            place.runs.mutate_run,
            SYSTEM,
            "run-1",
            lambda run, now: Commit.from_moment(cancel(run, now=now) or pytest.fail("it was not ended")),
            commit_id=new_commit_id(),
        )
        with psycopg.connect(beside.info.dsn, autocommit=True) as watch:
            _wait_for_lock_wait(watch)
    with pytest.raises(InactiveRun, match="done"):
        cancelled.result(timeout=60)
    assert place.run().status is RunStatus.DONE


def test_a_mutation_of_a_row_that_stays_locked_gives_up(place: Scene, beside: psycopg.Connection) -> None:
    place.start()
    with beside.transaction():
        beside.execute("SELECT FROM runs FOR UPDATE")
        with pytest.raises(StoreUnavailable, match="55P03"):
            place.mutate("run-1")
    place.mutate("run-1")


def test_renewal_leaves_out_a_locked_row_and_renews_the_others(place: Scene, beside: psycopg.Connection) -> None:
    place.start("run-1")
    place.start("run-2")
    claims = [(lease.run_id, place.redeem(lease)) for lease in place.scan().leases]
    with beside.transaction():
        beside.execute("SELECT FROM runs WHERE id = 'run-1' FOR UPDATE")
        assert place.runs.refresh_claims(claims) == {"run-2"}
    assert place.runs.refresh_claims(claims) == {"run-1", "run-2"}


@pytest.mark.parametrize("sqlstate", ["40001", "40P01"])
def test_a_commit_that_the_database_rolled_back_is_tried_again(
    place: Scene, beside: psycopg.Connection, sqlstate: str
) -> None:
    place.start()
    token = place.hold()
    beside.execute("CREATE SEQUENCE failures")
    beside.execute(
        "CREATE FUNCTION fail_once() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"IF nextval('docket.failures') = 1 THEN RAISE SQLSTATE '{sqlstate}'; END IF; RETURN NEW; END $$".encode()
    )
    beside.execute("CREATE TRIGGER fail_once BEFORE UPDATE ON runs FOR EACH ROW EXECUTE FUNCTION fail_once()")
    place.commit("run-1", token, schedule=RETAIN)
    assert place.run().checkpoint_seq == 2


def test_an_event_that_is_already_there_rolls_the_whole_commit_back(place: Scene, beside: psycopg.Connection) -> None:
    place.start()
    token = place.hold()
    beside.execute(
        "INSERT INTO run_events (run_id, seq, type, step, at, data) VALUES ('run-1', 2, 'x', 1, now(), '{}')"
    )
    with pytest.raises(EventConflict, match="run-1"):
        place.commit("run-1", token, schedule=RETAIN, fields={"total": 1})
    assert place.run().checkpoint_seq == 1
    assert place.run().fields == {}


def test_twenty_starts_under_one_key_make_one_run(place: Scene) -> None:
    place.publish()
    start = threading.Barrier(20)

    def one(number: int) -> tuple[str, bool]:
        start.wait()
        started = place.start(f"run-{number}", start_key="order-17", input_digest="d")
        return started.run.id, started.created

    with ThreadPoolExecutor(20) as pool:
        results = list(pool.map(one, range(20)))
    assert len({run_id for run_id, _ in results}) == 1
    assert [created for _, created in results].count(True) == 1


def test_an_expired_claim_is_stolen_by_exactly_one_of_many(place: Scene) -> None:
    place.start()
    place.hold()
    place.clock.advance(timedelta(minutes=2))
    start = threading.Barrier(8)

    def steal(_: int) -> int:
        start.wait()
        return len(place.runs.claim_due(a_scan(delivery="direct")).leases)

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(steal, range(8))) == 1


def _committed_while_another_moves_on(
    place: Scene, beside: psycopg.Connection, end: CommitProposal, wanted: TakeRequest
) -> Committed:
    """What comes of a commit of the run 'leaving' that waits for its row until the run 'moving' has moved on."""
    with ThreadPoolExecutor(1) as pool:
        with beside.transaction():
            beside.execute("SELECT FROM runs WHERE id = 'leaving' FOR UPDATE")
            commit = pool.submit(lambda: place.runs.commit(SYSTEM, end, take=wanted))
            with psycopg.connect(beside.info.dsn, autocommit=True) as watch:
                _wait_for_lock_wait(watch)
            place.runs.take_due(a_scan(limit=1), token="rival")
            place.commit("moving", "rival", schedule=Release(kind="immediate"), fields={"n": 2})
        return commit.result(timeout=60)


def test_a_run_that_moved_on_while_a_commit_waited_does_not_come_along_with_its_old_values(
    place: Scene, beside: psycopg.Connection
) -> None:
    place.start("leaving")
    token = place.hold()
    place.clock.advance(1)
    place.start("moving", fields={"n": 1})
    end = a_commit(place.run("leaving"), token, at=place.now, status=RunStatus.DONE)
    wanted = TakeRequest(policy=a_scan(limit=1), token="next")
    assert _committed_while_another_moves_on(place, beside, end, wanted).taken is None
    claim = place.runs.take_due(wanted.policy, token=wanted.token).claim
    assert isinstance(claim, Redeemed)
    assert (claim.run, claim.run.fields) == (place.run("moving"), {"n": 2})


def test_a_run_that_a_rival_holds_is_not_taken_alone(place: Scene, beside: psycopg.Connection) -> None:
    place.start()
    with beside.transaction():
        beside.execute("SELECT FROM runs FOR UPDATE")
        assert place.runs.take_alone(a_scan(limit=1), token="mine") is None
    assert place.runs.take_alone(a_scan(limit=1), token="mine") is not None


def test_one_run_that_is_due_is_taken_alone_by_one_of_many(place: Scene, postgres_url: str) -> None:
    runs = open_storage(postgres_url, max_connections=8).runs
    for number in range(20):
        place.start(f"run-{number}")
        start = threading.Barrier(8)

        def take(slot: int, number: int = number, start: threading.Barrier = start) -> int:
            start.wait()
            return runs.take_alone(a_scan(limit=1), token=f"{number}-{slot}") is not None

        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(take, range(8))) == 1
        assert place.info(f"run-{number}").claim_attempts == 1


def test_a_run_that_moved_on_while_a_commit_waited_comes_along_as_a_lease_of_what_it_is_by_now(
    place: Scene, beside: psycopg.Connection
) -> None:
    place.start("leaving")
    token = place.hold()
    place.clock.advance(1)
    place.start("moving")
    end = a_commit(place.run("leaving"), token, at=place.now, status=RunStatus.DONE)
    wanted = TakeRequest(policy=a_scan(limit=1), token="next", redeem=False)
    taken = _committed_while_another_moves_on(place, beside, end, wanted).taken
    assert taken is not None
    (lease,) = taken.batch.leases
    assert (lease.run_id, lease.checkpoint_seq) == ("moving", place.run("moving").checkpoint_seq)
    assert place.runs.redeem_claim(lease, token="private").run == place.run("moving")
