"""A signal to a run at rest locks nothing before it writes: what may happen between its read and its write."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import psycopg
import pytest
from psycopg import sql
from support.builders import a_commit, a_decision, new_commit_id
from support.clock import eventually
from support.scene import RETAIN, Scene

from docket_celery.errors import NotFound, StaleFence, StoreUnavailable
from docket_celery.run.document import Run
from docket_celery.storage.contracts.values import SYSTEM, Mutated, MutationDecision, NoChange
from docket_celery.storage.postgres import database, mutations, sessions

Meanwhile = Callable[[], object]


class Signal:
    """Adds its own field to a run; what is given happens once, after its first look and before its first write."""

    def __init__(self, place: Scene, meanwhile: Meanwhile = lambda: None) -> None:
        self.place = place
        self.meanwhile: Meanwhile | None = meanwhile
        self.seen: list[int] = []

    def __call__(self) -> Mutated:
        return self.place.runs.mutate_run(SYSTEM, "run-1", self._decide, commit_id=new_commit_id())

    def _decide(self, run: Run, now: datetime) -> MutationDecision:
        self.seen.append(run.checkpoint_seq)
        decision = a_decision(run, at=now, fields={**run.fields, "answer": "yes"})
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return decision


def _is_locked(beside: psycopg.Connection) -> bool:
    return not beside.execute("SELECT FROM runs FOR UPDATE SKIP LOCKED").fetchall()


def test_the_row_is_not_locked_while_it_is_decided(place: Scene, beside: psycopg.Connection) -> None:
    place.start()
    locked: list[bool] = []
    assert Signal(place, lambda: locked.append(_is_locked(beside)))().changed
    assert locked == [False]


def test_the_row_of_a_claimed_run_is_locked_while_it_is_decided(place: Scene, beside: psycopg.Connection) -> None:
    place.start()
    place.hold()
    locked: list[bool] = []
    assert Signal(place, lambda: locked.append(_is_locked(beside)))().changed
    assert locked == [True]


def test_a_run_that_has_moved_on_is_decided_anew_and_keeps_what_the_other_wrote(place: Scene) -> None:
    place.start()
    signal = Signal(place, lambda: place.mutate("run-1", fields={"total": 1}))
    assert signal().changed
    assert signal.seen == [1, 2]
    assert place.run().fields == {"total": 1, "answer": "yes"}
    assert place.run().checkpoint_seq == 3


def test_another_commit_under_the_same_sequence_is_not_taken_for_the_one_that_was_read(
    place: Scene, beside: psycopg.Connection
) -> None:
    # As after a failover to a server that had not received it yet.
    place.start()
    place.mutate("run-1")
    signal = Signal(place, lambda: beside.execute("UPDATE runs SET commit_id = 'of another history'"))
    assert signal().changed
    assert signal.seen == [2, 2]


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
def test_a_write_that_waits_for_a_commit_finds_the_run_moved_on(
    place: Scene, beside: psycopg.Connection, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    # As behind a pooler, where nothing is set in a session.
    monkeypatch.setattr(sessions, "_NEEDED", b"SELECT")
    monkeypatch.setattr(database, "_REPEATS", 0)
    setting = sql.SQL("ALTER DATABASE {} SET default_transaction_isolation = {}")
    beside.execute(setting.format(sql.Identifier(beside.info.dbname), sql.Literal(level)))
    place.start()
    inside, proceed = threading.Event(), threading.Event()

    def meanwhile() -> None:
        inside.set()
        assert proceed.wait(60)

    signal = Signal(place, meanwhile)
    with ThreadPoolExecutor(1) as pool:
        mutated = pool.submit(signal)
        assert inside.wait(60)
        with beside.transaction(), psycopg.connect(beside.info.dsn, autocommit=True) as watch:
            beside.execute("UPDATE runs SET checkpoint_seq = 2, commit_id = 'other'")
            proceed.set()
            waiting = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            eventually(lambda: watch.execute(waiting).fetchall())
        assert mutated.result(timeout=60).changed
    assert signal.seen == [1, 2]


def test_a_claim_that_comes_in_between_is_revoked(place: Scene) -> None:
    place.start()
    tokens: list[str] = []
    signal = Signal(place, lambda: tokens.append(place.hold()))
    before = place.run()
    assert signal().changed
    assert signal.seen == [1]
    assert place.info().claimed_at is None
    with pytest.raises(StaleFence):
        place.runs.commit(SYSTEM, a_commit(before, tokens[0], at=place.now, schedule=RETAIN))


def test_a_run_that_is_gone_after_the_read_is_not_found(place: Scene, beside: psycopg.Connection) -> None:
    place.start()
    with pytest.raises(NotFound, match="run-1"):
        Signal(place, lambda: beside.execute("DELETE FROM runs"))()
    assert beside.execute("SELECT FROM run_events").fetchall() == []


def test_a_row_that_stays_locked_after_the_read_is_given_up(
    place: Scene, beside: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutations, "_LOCK_TIMEOUT", "20ms")
    place.start()
    with beside.transaction(), pytest.raises(StoreUnavailable, match="55P03"):
        Signal(place, lambda: beside.execute("SELECT FROM runs FOR UPDATE"))()
    assert place.run().checkpoint_seq == 1


@pytest.mark.usefixtures("patient")
def test_of_many_who_have_read_the_same_run_one_writes(place: Scene) -> None:
    place.start()
    together = threading.Barrier(3)

    def answer(_: int) -> bool:
        looks: list[int] = []

        def decide(run: Run, now: datetime) -> MutationDecision:
            looks.append(run.checkpoint_seq)
            if len(looks) == 1:
                together.wait(60)
            return NoChange() if run.fields else a_decision(run, at=now, fields={"answer": "yes"})

        return place.runs.mutate_run(SYSTEM, "run-1", decide, commit_id=new_commit_id()).changed

    with ThreadPoolExecutor(3) as pool:
        assert sorted(pool.map(answer, range(3))) == [False, False, True]
    assert place.run().checkpoint_seq == 2


def test_a_write_whose_reply_was_lost_is_recognised(place: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    place.start()
    signal = Signal(place)
    database = place.runs._database
    execute = type(database).execute
    lost: list[str] = []

    def losing(self: Any, session: Any, name: str, parameters: dict[str, Any], **options: Any) -> Any:
        found = execute(self, session, name, parameters, **options)
        if name.startswith("commit_release_as_read") and not lost:
            lost.append(name)
            session.pgconn.finish()
            raise psycopg.OperationalError("the reply was lost")
        return found

    monkeypatch.setattr(type(database), "execute", losing)
    assert signal().changed
    assert lost
    assert signal.seen == [1]
    assert place.run().checkpoint_seq == 2
