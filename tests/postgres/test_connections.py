"""Connections that break, poolers in between, forks, and the caller's own transaction."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import datetime
from typing import Any

import psycopg
import pytest
from psycopg import capabilities, errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import DiagnosticField
from psycopg_pool import ConnectionPool
from support.builders import ORDER, a_commit, a_decision, a_run, a_scan, an_initial, new_commit_id
from support.clock import eventually
from support.relay import relay_to
from support.scene import QUIETLY, RETAIN, Scene

from docket_celery.errors import ConfigError, InvalidCommit, NotFound, StoreUnavailable
from docket_celery.run.document import Run, RunStatus
from docket_celery.storage.contracts.claims import Redeemed
from docket_celery.storage.contracts.taking import TakeRequest
from docket_celery.storage.contracts.values import (
    SYSTEM,
    TENANTLESS,
    CommitProposal,
    Committed,
    MutationDecision,
    NoChange,
    Retain,
)
from docket_celery.storage.postgres import mutations, open_storage, sessions
from docket_celery.storage.postgres.sessions import Session
from docket_celery.storage.postgres.watch import Watch
from docket_celery.testing import ManualClock, SequentialIds


def _cut_all_others(connection: psycopg.Connection) -> None:
    """Ends every other session of this database, as a restart would. A pool may open new ones meanwhile."""
    ended = connection.execute(
        "SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
    ).fetchall()
    pids = [row["pid"] for row in ended]
    eventually(lambda: not connection.execute("SELECT FROM pg_stat_activity WHERE pid = ANY (%s)", (pids,)).fetchall())


def test_every_operation_survives_a_cut_connection(place: Scene, beside: psycopg.Connection) -> None:
    place.publish()
    _cut_all_others(beside)
    place.start()
    _cut_all_others(beside)
    lease = place.lease()
    _cut_all_others(beside)
    token = place.redeem(lease)
    _cut_all_others(beside)
    place.commit("run-1", token, schedule=RETAIN, fields={"total": 1})
    _cut_all_others(beside)
    place.runs.refresh_claim("run-1", token)
    _cut_all_others(beside)
    place.mutate("run-1", fields={"total": 2})
    _cut_all_others(beside)
    assert place.run().fields == {"total": 2}
    _cut_all_others(beside)
    assert len(place.storage.events.list_events(SYSTEM, "run-1").events) == 3


def test_many_pooled_connections_cut_at_once_are_all_replaced(postgres_url: str, beside: psycopg.Connection) -> None:
    place = Scene(open_storage(postgres_url, max_connections=4), ManualClock())
    place.start()
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            assert all(run.id == "run-1" for run in pool.map(lambda _: place.run(), range(20)))
            _cut_all_others(beside)


def test_threads_whose_first_uses_meet_come_to_one_pool(
    place: Scene, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.start()
    new = Scene(open_storage(postgres_url), place.clock)
    original, opening, others_are_done = ConnectionPool.open, threading.Event(), threading.Event()

    def open_late(pool: ConnectionPool) -> None:
        if not opening.is_set():
            opening.set()
            assert others_are_done.wait(30)
        original(pool)

    monkeypatch.setattr(ConnectionPool, "open", open_late)
    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(new.run)
        assert opening.wait(30)
        try:
            assert new.run().id == "run-1"
        finally:
            others_are_done.set()
        assert first.result(30).id == "run-1"
    (pool,) = new.runs._database.sessions._pools.values()
    assert not pool.closed


def _lose_reply(place: Scene, monkeypatch: pytest.MonkeyPatch, statement: str) -> None:
    """The first run of the named statement takes effect, and then its connection is gone before the reply is read."""
    database = place.runs._database
    original = database.execute
    lost: list[str] = []

    def execute(session: psycopg.Connection, name: str, parameters: dict[str, Any], **options: Any) -> psycopg.Cursor:
        cursor = original(session, name, parameters, **options)
        if name == statement and not lost:
            lost.append(name)
            session.pgconn.finish()
            raise psycopg.OperationalError("the connection was lost after the statement")
        return cursor

    monkeypatch.setattr(database, "execute", execute)


@pytest.mark.parametrize(
    ("schedule", "statement"),
    [(RETAIN, "commit_retain_replacing"), (QUIETLY, "commit_retain_quietly_replacing")],
    ids=["telling", "quiet"],
)
def test_a_commit_whose_reply_was_lost_is_recognised_by_its_id(
    place: Scene, monkeypatch: pytest.MonkeyPatch, schedule: Retain, statement: str
) -> None:
    place.start()
    proposal = a_commit(place.run(), place.hold(), at=place.now, schedule=schedule, fields={"total": 1})
    _lose_reply(place, monkeypatch, statement)
    assert place.runs.commit(SYSTEM, proposal).claimed_at == place.now
    assert place.run().checkpoint_seq == 2


def test_a_redemption_whose_reply_was_lost_counts_once(place: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    place.start()
    lease = place.lease()
    _lose_reply(place, monkeypatch, "redeem_claim")
    assert place.runs.redeem_claim(lease, token="mine").claim_attempt == 1


def test_a_taken_run_whose_reply_was_lost_is_the_one_that_is_given(
    place: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.start("run-1")
    place.clock.advance(1)
    place.start("run-2")
    _lose_reply(place, monkeypatch, "take_ready")
    claim = place.runs.take_due(a_scan(limit=1), token="mine").claim
    assert isinstance(claim, Redeemed)
    assert (claim.run.id, claim.claim_attempt) == ("run-1", 1)
    assert place.info("run-2").claimed_at is None


def test_a_run_that_was_taken_alone_is_given_again_after_a_lost_reply(
    place: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.start("run-1")
    _lose_reply(place, monkeypatch, "take_alone")
    taken = place.runs.take_alone(a_scan(limit=1), token="mine")
    assert taken is not None
    assert isinstance(taken.claim, Redeemed)
    assert (taken.claim.run.id, taken.claim.claim_attempt) == ("run-1", 1)


def _end_of_the_first_of_three(place: Scene) -> CommitProposal:
    for number in (1, 2, 3):
        place.start(f"run-{number}")
        place.clock.advance(1)
    return a_commit(place.run(), place.hold(limit=1), at=place.now, status=RunStatus.DONE)


def test_a_commit_whose_reply_was_lost_says_who_came_along_with_it(
    place: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    proposal = _end_of_the_first_of_three(place)
    _lose_reply(place, monkeypatch, "commit_release_and_take")
    request = TakeRequest(policy=a_scan(limit=1), token="mine")
    taken = place.runs.commit(SYSTEM, proposal, take=request).taken
    assert taken is not None
    assert isinstance(taken.claim, Redeemed)
    assert (taken.claim.run.id, taken.claim.claim_attempt) == ("run-2", 1)
    assert place.info("run-3").claimed_at is None


def test_a_commit_whose_reply_was_lost_says_which_lease_came_along_with_it(
    place: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    proposal = _end_of_the_first_of_three(place)
    _lose_reply(place, monkeypatch, "commit_release_and_lease")
    request = TakeRequest(policy=a_scan(limit=1), token="the lease's", redeem=False)
    taken = place.runs.commit(SYSTEM, proposal, take=request).taken
    assert taken is not None
    (lease,) = taken.batch.leases
    assert (taken.claim, lease.run_id, lease.claim_token, lease.claim_attempt) == (None, "run-2", "the lease's", 1)
    assert (place.info("run-2").claim_redeemed, place.info("run-3").claimed_at) == (False, None)


def test_a_forced_cancel_whose_reply_was_lost_has_changed_the_run(
    place: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.start()
    _lose_reply(place, monkeypatch, "force_cancel")
    ended = place.runs.force_cancel(SYSTEM, "run-1", reason="", commit_id="mine")
    assert (ended.changed, ended.run.checkpoint_seq, ended.run.event_seq) == (True, 2, place.run().event_seq)
    assert not place.runs.force_cancel(SYSTEM, "run-1", reason="", commit_id="another").changed


@pytest.mark.parametrize("key", [None, "order-17"])
def test_a_start_whose_reply_was_lost_counts_as_created(
    place: Scene, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    place.publish()
    _lose_reply(place, monkeypatch, "insert_run")
    assert place.start(start_key=key, input_digest=None if key is None else "d").created
    with pytest.raises(InvalidCommit, match="taken"):
        place.start()


@pytest.mark.parametrize("keys", [(None, None), ("a", None), ("a", "b")])
def test_a_bulk_start_whose_commit_went_unanswered_counts_as_created(
    place: Scene, monkeypatch: pytest.MonkeyPatch, keys: tuple[str | None, ...]
) -> None:
    place.publish()
    original, lost = Session.transaction, list[str]()

    @contextmanager
    def transaction(session: Session) -> Iterator[None]:
        with original(session):
            yield
        if not lost:
            lost.append("the reply")
            session.pgconn.finish()
            raise psycopg.OperationalError("the connection was lost after the commit")

    monkeypatch.setattr(Session, "transaction", transaction)
    batch = [an_initial(a_run(f"run-{n}", at=place.now), start_key=key, input_digest=key) for n, key in enumerate(keys)]
    started = place.runs.insert_runs(TENANTLESS, batch)
    assert [(start.run.id, start.created) for start in started] == [("run-0", True), ("run-1", True)]
    assert lost == ["the reply"]


def test_a_connection_that_was_cut_while_it_was_opened_is_asked_for_again(
    place: Scene, beside: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.start()
    cut: list[str] = []
    original = psycopg.Connection.connect.__func__  # type: ignore[attr-defined]

    def connect(cls: type[psycopg.Connection], *args: Any, **kwargs: Any) -> psycopg.Connection:
        if not cut:
            cut.append("once")
            raise psycopg.OperationalError("terminating connection due to administrator command")
        return original(cls, *args, **kwargs)

    place.runs._database.sessions.close()
    monkeypatch.setattr(psycopg.Connection, "connect", classmethod(connect))
    assert place.run().id == "run-1"
    assert cut == ["once"]


def test_a_connection_that_is_cut_right_after_it_was_opened_has_failed_to_open(
    place: Scene, beside: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.start()
    original = sessions.is_pooled

    def cut(session: Session) -> bool:
        beside.execute("SELECT pg_terminate_backend(%s)", [session.info.backend_pid])
        return original(session)

    with monkeypatch.context() as patched:
        patched.setattr(sessions, "is_pooled", cut)
        _cut_all_others(beside)
        with pytest.raises(StoreUnavailable, match="terminating connection"):
            place.run()
    assert place.run().id == "run-1"


def test_a_mutation_that_the_server_ended_while_its_process_stood_still_is_made_again(
    place: Scene, beside: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.start()
    place.hold()  # So that the row is locked.
    calls: list[int] = []
    regular = mutations._IDLE_TIMEOUT
    monkeypatch.setattr(mutations, "_IDLE_TIMEOUT", "500ms")

    def decide(run: Run, now: datetime) -> MutationDecision:
        calls.append(run.checkpoint_seq)
        if len(calls) == 1:
            holding = "SELECT FROM pg_locks WHERE relation = 'runs'::regclass AND mode = 'RowShareLock'"
            eventually(lambda: not beside.execute(holding).fetchall())
            monkeypatch.setattr(mutations, "_IDLE_TIMEOUT", regular)
        return a_decision(run, at=now, fields={"total": 1})

    assert place.runs.mutate_run(SYSTEM, "run-1", decide, commit_id=new_commit_id()).changed
    assert calls == [1, 1]
    assert place.run().checkpoint_seq == 2


def test_an_unreachable_database_is_named_without_its_password(closed_port: int) -> None:
    storage = open_storage(f"postgresql://me:secret@127.0.0.1:{closed_port}/proj")
    with pytest.raises(StoreUnavailable) as caught:
        storage.runs.fetch_run(SYSTEM, "run-1")
    assert f"127.0.0.1:{closed_port}, database proj" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_malformed_url_is_refused_without_being_quoted() -> None:
    with pytest.raises(ConfigError) as caught:
        open_storage("postgresql://me:secret@[half/proj")
    assert "secret" not in str(caught.value)


def test_prepared_statements_that_a_pooler_lost_are_given_up(place: Scene) -> None:
    place.start()
    for _ in range(3):
        place.run()
    place.runs._database.run(lambda session, _: session.execute("DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$"))
    assert place.run().id == "run-1"
    place.runs._database.run(lambda session, _: session.execute("DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$"))
    assert place.info().run_id == "run-1"


def test_a_changed_column_under_a_prepared_statement_is_met_with_a_fresh_plan(
    place: Scene, beside: psycopg.Connection
) -> None:
    place.start()
    token = place.hold()
    for _ in range(3):
        place.commit("run-1", token, schedule=RETAIN)
        place.run()
    beside.execute("ALTER TABLE runs ADD COLUMN later text")
    beside.execute("ALTER TABLE runs ALTER COLUMN claim_attempts TYPE bigint")
    place.commit("run-1", token, schedule=RETAIN)
    assert place.run().checkpoint_seq == 5
    assert place.info().claim_attempts == 0


def test_no_transaction_stays_open(place: Scene, beside: psycopg.Connection) -> None:
    place.start()

    def look(run: Run, now: datetime) -> MutationDecision:
        return NoChange()

    place.runs.mutate_run(SYSTEM, "run-1", look, commit_id=new_commit_id())
    with pytest.raises(NotFound):
        place.mutate("run-2")
    place.hold()
    open_ones = (
        "SELECT FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
        "AND (xact_start IS NOT NULL OR backend_xmin IS NOT NULL) AND backend_type = 'client backend'"
    )
    assert beside.execute(open_ones.encode()).fetchall() == []


def test_a_forked_child_opens_connections_of_its_own(place: Scene, beside: psycopg.Connection) -> None:
    place.start()
    pids = (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
        "AND backend_type = 'client backend' ORDER BY pid"
    )
    before = beside.execute(pids.encode()).fetchall()
    child = os.fork()
    if child == 0:
        # The child must leave without running the test session's own clean-up.
        status = 1
        try:
            status = 0 if place.run().id == "run-1" and place.mutate("run-1").checkpoint_seq == 2 else 2
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert place.run().checkpoint_seq == 2
    eventually(lambda: beside.execute(pids.encode()).fetchall() == before)  # The server may still end the child's own.


class TestCallersTransaction:
    def test_a_run_exists_once_the_caller_commits(self, place: Scene, postgres_url: str) -> None:
        place.publish()
        with psycopg.connect(postgres_url) as mine:
            started = place.runs.insert_run(TENANTLESS, an_initial(a_run(at=place.now)), connection=mine)
            assert started.run.started_at == place.now
            with pytest.raises(NotFound):
                place.run()
        assert place.run() == started.run

    def test_a_run_vanishes_when_the_caller_rolls_back(self, place: Scene, postgres_url: str) -> None:
        place.publish()
        with psycopg.connect(postgres_url) as mine:
            place.runs.insert_run(TENANTLESS, an_initial(a_run(at=place.now)), connection=mine)
            mine.rollback()
        with pytest.raises(NotFound):
            place.run()

    def test_a_refusal_leaves_the_callers_work_alone(self, place: Scene, postgres_url: str) -> None:
        with psycopg.connect(postgres_url) as mine:
            mine.execute("CREATE TABLE orders (id int)")
            with pytest.raises(NotFound, match=ORDER.graph_id):
                place.runs.insert_run(TENANTLESS, an_initial(a_run(at=place.now)), connection=mine)
            mine.execute("INSERT INTO orders VALUES (1)")
        with psycopg.connect(postgres_url) as other:
            assert other.execute("SELECT id FROM orders").fetchall() == [(1,)]


def _parameters(url: str) -> dict[str, str]:
    with closing(open_storage(url).runs._database.sessions.take(fresh=True)) as session:
        return session.info.get_parameters()


def test_a_server_that_no_packet_reaches_is_given_up_soon_unless_the_url_says_otherwise(postgres_url: str) -> None:
    by_default, chosen = _parameters(postgres_url), _parameters(f"{postgres_url}?tcp_user_timeout=77000")
    assert (by_default["tcp_user_timeout"], by_default["keepalives_idle"]) == ("10000", "10")
    assert (chosen["tcp_user_timeout"], chosen["keepalives_idle"]) == ("77000", "10")


class Impatient:
    """The sessions' watch, to which every operation that is under way when it looks has taken too long."""

    def __init__(self) -> None:
        self._now = 0.0
        self.watch = Watch(longest=90.0, interval=3_600.0, monotonic=lambda: self._now)

    def look(self) -> None:
        self._now += 91.0
        self.watch.look()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Impatient:
    looks = Impatient()
    monkeypatch.setattr(sessions, "WATCH", looks.watch)
    return looks


def test_a_statement_on_a_link_that_only_looks_open_is_made_on_another(
    place: Scene, postgres_url: str, impatient: Impatient
) -> None:
    place.start()
    port = int(conninfo_to_dict(postgres_url)["port"] or 0)
    with relay_to(port) as relay, ThreadPoolExecutor(1) as thread:
        far = Scene(open_storage(make_conninfo(postgres_url, port=relay.port)), place.clock)
        assert far.run().id == "run-1"
        relay.fall_silent()
        asked = thread.submit(far.run)
        assert relay.has_dropped.wait(10)
        relay.speak_again()
        impatient.look()
        assert asked.result(30).id == "run-1"


@pytest.mark.parametrize("schedule", [RETAIN, QUIETLY], ids=["telling", "quiet"])
def test_a_commit_whose_link_falls_silent_before_the_reply_is_known_as_its_own_when_it_is_repeated(
    place: Scene, beside: psycopg.Connection, postgres_url: str, impatient: Impatient, schedule: Retain
) -> None:
    place.start()
    proposal = a_commit(place.run(), place.hold(), at=place.now, schedule=schedule)
    blocked = "SELECT FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"
    port = int(conninfo_to_dict(postgres_url)["port"] or 0)
    with relay_to(port) as relay, ThreadPoolExecutor(1) as thread:
        far = Scene(open_storage(make_conninfo(postgres_url, port=relay.port), now=place.clock.now), place.clock)
        assert far.run().checkpoint_seq == 1
        with beside.transaction():
            beside.execute("SELECT FROM docket.runs FOR UPDATE")
            asked = thread.submit(far.runs.commit, SYSTEM, proposal)
            eventually(lambda: beside.execute(blocked).fetchall())
            relay.fall_silent()
        assert relay.has_dropped.wait(10)
        assert place.run().checkpoint_seq == 2
        relay.speak_again()
        impatient.look()
        assert isinstance(asked.result(30), Committed)
    assert place.run().checkpoint_seq == 2


@pytest.mark.skipif(not capabilities.has_cancel_safe(), reason="this libpq cannot cancel within a bounded time")
def test_a_statement_that_waits_for_too_long_leaves_nothing_at_the_server(
    place: Scene, beside: psycopg.Connection, impatient: Impatient, caplog: pytest.LogCaptureFixture
) -> None:
    place.start()
    # Unlike what the server says of its sessions, locks are not remembered for the length of a transaction.
    waiting = "SELECT FROM pg_locks WHERE NOT granted AND relation = 'docket.runs'::regclass"
    with beside.transaction(), ThreadPoolExecutor(1) as thread:
        beside.execute("LOCK TABLE docket.runs")
        asked = thread.submit(place.run)
        eventually(lambda: beside.execute(waiting).fetchall())
        eventually(lambda: impatient.look() or asked.done())
        with pytest.raises(StoreUnavailable):
            asked.result()
        assert "PostgreSQL has not answered for 90 s" in caplog.text
        eventually(lambda: not beside.execute(waiting).fetchall())
    assert place.run().id == "run-1"


def test_a_server_that_is_out_of_transaction_ids_refuses_no_value(
    place: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the words and by the code of PostgreSQL 18. That of a value beyond a limit would fail its run for good."""
    said = "database is not accepting commands that assign new transaction IDs to avoid wraparound data loss"
    where = {DiagnosticField.SOURCE_FUNCTION: b"GetNewTransactionId"}

    def execute(*_: Any, **__: Any) -> psycopg.Cursor:
        raise errors.ProgramLimitExceeded(said, info=where)

    monkeypatch.setattr(place.runs._database, "execute", execute)
    with pytest.raises(StoreUnavailable, match=f"54000: {said}"):
        place.start()


def test_a_failure_to_connect_is_told_once(caplog: pytest.LogCaptureFixture, closed_port: int) -> None:
    with pytest.raises(StoreUnavailable, match="refused"):
        open_storage(f"postgresql://127.0.0.1:{closed_port}/proj").runs.fetch_run(SYSTEM, "run-1")
    assert caplog.records == []


def test_opening_a_store_connects_to_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        open_storage(f"postgresql://127.0.0.1:{server.getsockname()[1]}/proj")
        server.settimeout(0.2)
        with pytest.raises(TimeoutError):
            server.accept()


def test_two_stores_of_one_process_share_nothing(postgres_url: str, ids: SequentialIds) -> None:
    one, other = open_storage(postgres_url), open_storage(postgres_url)
    Scene(one, ManualClock()).start()
    one.runs._database.sessions.close()
    assert other.runs.fetch_run(SYSTEM, "run-1").id == "run-1"
    assert one.runs.fetch_run(SYSTEM, "run-1").id == "run-1"
