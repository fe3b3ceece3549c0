"""Pruning against everything else: frozen and killed pruners, several at once, lock order, and what a pass costs."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from support.builders import a_run, a_scan, an_initial
from support.clock import eventually, own_time, within
from support.scene import RETAIN, Scene

from docket_celery.clock import SystemClock
from docket_celery.errors import InactiveRun, NotFound, StaleFence, StoreUnavailable
from docket_celery.run.document import RunStatus
from docket_celery.storage.contracts.retention import PruneCount, PrunePolicy
from docket_celery.storage.contracts.values import SYSTEM, TENANTLESS, GraphRef
from docket_celery.storage.postgres import open_storage
from docket_celery.storage.postgres.locks import advisory_key

YEAR = timedelta(days=365)
OLD = PrunePolicy(runs=timedelta(days=30), events=timedelta(days=7), graphs=timedelta(days=30), batch=2)


def _ended(place: Scene, count: int) -> None:
    for number in range(count):
        place.start(f"run-{number}")
        place.mutate(f"run-{number}", status=RunStatus.DONE)


def _prune(place: Scene, policy: PrunePolicy = OLD) -> PruneCount:
    return place.storage.retention.prune(SYSTEM, policy)


def _count(beside: psycopg.Connection, table: str) -> int:
    row = beside.execute(f"SELECT count(*) AS n FROM {table}".encode()).fetchone()
    assert row is not None
    return int(row["n"])


class TestFrozenOrKilled:
    def test_a_pass_that_finds_the_lock_held_removes_nothing_and_says_so(
        self, place: Scene, beside: psycopg.Connection
    ) -> None:
        _ended(place, 3)
        place.clock.advance(YEAR)
        with beside.transaction():
            beside.execute("SELECT pg_advisory_xact_lock(%s)", (advisory_key("prune", "docket"),))
            assert _prune(place) == PruneCount(busy=True)
        assert _prune(place) == PruneCount(runs=2, events=6, more=True)

    def test_pruning_goes_on_once_the_session_of_a_frozen_pruner_is_gone(
        self, place: Scene, beside: psycopg.Connection
    ) -> None:
        _ended(place, 2)
        place.start("healthy")
        token = place.hold()
        place.clock.advance(1)
        with suppress(psycopg.OperationalError), psycopg.connect(beside.info.dsn) as frozen:
            frozen.execute("SELECT pg_advisory_xact_lock(%s)", (advisory_key("prune", "docket"),))
            frozen.execute("SELECT FROM docket.runs WHERE finished_at IS NOT NULL FOR UPDATE")
            with within(5.0):
                place.commit("healthy", token, schedule=RETAIN)
                place.start("another")
                assert place.lease().run_id == "another"
            place.clock.advance(YEAR)
            assert _prune(place).busy
            beside.execute("SELECT pg_terminate_backend(%s)", (frozen.info.backend_pid,))
            eventually(lambda: not _prune(place).busy)
        assert _count(beside, "runs") == 2

    def test_a_pass_that_is_killed_leaves_whole_runs_and_no_lock(
        self, place: Scene, beside: psycopg.Connection
    ) -> None:
        _ended(place, 4)
        place.clock.advance(YEAR)
        # The deletion of the second run of the batch waits; there the pass is cut off.
        beside.execute(
            "CREATE FUNCTION hold_up() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "IF OLD.id = 'run-1' THEN PERFORM pg_sleep(60); END IF; RETURN OLD; END $$"
        )
        beside.execute("CREATE TRIGGER hold_up BEFORE DELETE ON runs FOR EACH ROW EXECUTE FUNCTION hold_up()")
        asleep = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
        with ThreadPoolExecutor(1) as pool:
            doomed = pool.submit(_prune, place)
            (row,) = eventually(lambda: beside.execute(asleep.encode()).fetchall())
            beside.execute("SELECT pg_terminate_backend(%s)", (row["pid"],))
            others = f"{asleep} AND pid <> {row['pid']}"
            (again,) = eventually(lambda: beside.execute(others.encode()).fetchall())
            assert _count(beside, "runs") == 4
            assert _count(beside, "run_events") == 8
            beside.execute("SELECT pg_cancel_backend(%s)", (again["pid"],))
            with pytest.raises(StoreUnavailable, match="57014"):
                doomed.result(timeout=30)
        beside.execute("DROP TRIGGER hold_up ON runs")
        assert beside.execute("SELECT FROM pg_locks WHERE locktype = 'advisory'").fetchall() == []
        assert [_prune(place).runs for _ in range(2)] == [2, 2]


class TestLocks:
    def test_a_locked_row_is_left_for_a_later_pass(self, place: Scene, beside: psycopg.Connection) -> None:
        _ended(place, 2)
        place.clock.advance(YEAR)
        with beside.transaction():
            beside.execute("SELECT FROM runs WHERE id = 'run-0' FOR SHARE")
            assert _prune(place).runs == 1
            assert _prune(place) == PruneCount()
        assert _prune(place).runs == 1

    def test_a_version_that_a_start_has_just_come_to_need_stays(
        self, place: Scene, beside: psycopg.Connection, postgres_url: str
    ) -> None:
        first, second = (GraphRef(graph_id="order", graph_hash=letter * 64) for letter in "ab")
        place.publish(ref=first)
        place.clock.advance(1)
        place.publish(ref=second)
        place.clock.advance(YEAR)
        with psycopg.connect(postgres_url) as mine:
            initial = an_initial(a_run(at=place.now, ref=first))
            place.runs.insert_run(TENANTLESS, initial, connection=mine)
            assert _prune(place).graphs == 0
        assert place.run().graph_hash == first.graph_hash
        assert _prune(place).graphs == 0

    def test_three_pruners_beside_everything_else_meet_no_deadlock_and_hold_up_no_commit(
        self, postgres_url: str, beside: psycopg.Connection
    ) -> None:
        storage = open_storage(postgres_url, max_connections=12)
        place = Scene(storage, SystemClock())
        place.publish()
        policy = PrunePolicy(
            runs=timedelta(milliseconds=100), events=timedelta(milliseconds=50), graphs=timedelta(0), batch=20
        )
        began = _deadlocks(beside)
        started, removed, slowest = [0], [0], [0.0]
        done = threading.Event()
        guard = threading.Lock()

        def prune() -> None:
            while not done.is_set():
                count = storage.retention.prune(SYSTEM, policy)
                with guard:
                    removed[0] += count.runs

        def start(run_id: str) -> None:
            """Again where the version went between its publication and the start: another is the latest by then."""
            while True:
                with suppress(NotFound):
                    place.start(run_id)
                    return

        def work() -> None:
            for _ in range(60):
                with guard:
                    started[0] += 1
                    run_id = f"run-{started[0]}"
                start(run_id)
                for lease in storage.runs.claim_due(a_scan()).leases:
                    try:
                        token = place.redeem(lease, token=f"t-{lease.run_id}-{lease.claim_token}")
                        at = clock()
                        place.commit(lease.run_id, token, status=RunStatus.DONE)
                        slowest[0] = max(slowest[0], clock() - at)
                    except (StaleFence, NotFound):
                        continue

        def meddle() -> None:
            rng = random.Random(1)
            while not done.is_set():
                run_id = f"run-{rng.randint(1, max(started[0], 1))}"
                with suppress(NotFound, InactiveRun):
                    storage.runs.force_cancel(SYSTEM, run_id, reason="", commit_id="c")
                place.publish(ref=GraphRef(graph_id="order", graph_hash=rng.choice("cdef") * 64))

        with own_time() as clock, ThreadPoolExecutor(8) as pool:
            others = [pool.submit(prune) for _ in range(3)] + [pool.submit(meddle)]
            for future in [pool.submit(work) for _ in range(3)]:
                future.result(timeout=120)
            eventually(lambda: _drained(storage, place))
            eventually(lambda: _count(beside, "runs") == 0)
            done.set()
            for future in others:
                future.result(timeout=30)
        assert _deadlocks(beside) == began
        assert removed[0] == started[0] == 180
        assert _count(beside, "run_events") == 0
        assert slowest[0] < 5.0
        assert beside.execute("SELECT FROM pg_locks WHERE locktype = 'advisory'").fetchall() == []


class TestCost:
    def test_a_pass_reads_along_the_partial_indexes(self, place: Scene, beside: psycopg.Connection) -> None:
        place.publish()
        beside.execute(
            "INSERT INTO runs (id, graph_id, graph_hash, status, step, checkpoint_seq, event_seq, checkpoint_type,"
            " state, wake_at, started_at, updated_at, finished_at, events_since)"
            " SELECT 'r-' || n, graph_id, graph_hash, CASE WHEN n % 10 = 0 THEN 'running' ELSE 'done' END, 1, 1, 1,"
            " 'run_initialized', '{\"v\":1}', CASE WHEN n % 10 = 0 THEN now() END, now(), now(),"
            " CASE WHEN n % 10 > 0 THEN now() - n * interval '1 minute' END, now() - n * interval '1 minute'"
            " FROM graph_versions, generate_series(1, 20000) n"
        )
        beside.execute(
            "INSERT INTO run_events (run_id, seq, type, step, at, data)"
            " SELECT id, 1, 'run_started', 1, events_since, '{\"v\":1,\"data\":{}}' FROM runs"
        )
        for analysed in (False, True):
            if analysed:
                beside.execute("ANALYZE")
            for statement in ("prune_runs", "prune_events"):
                plan = _plan(place, beside, statement)
                assert "Seq Scan on runs" not in plan, plan
                assert "Seq Scan on run_events" not in plan, plan


def _plan(place: Scene, beside: psycopg.Connection, statement: str) -> str:
    parameters = {
        "lock": 1, "tenant": None, "age": timedelta(days=7), "batch": 50, "event_batch": 1_000, "now": None,
    }  # fmt: skip
    with beside.transaction(force_rollback=True):
        query = b"EXPLAIN (ANALYZE, BUFFERS) " + place.runs._database.queries[statement]
        return "\n".join(row["QUERY PLAN"] for row in beside.execute(query, parameters).fetchall())


def _deadlocks(beside: psycopg.Connection) -> int:
    row = beside.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").fetchone()
    assert row is not None
    return int(row["deadlocks"])


def _drained(storage: Any, place: Scene) -> bool:
    """Ends what is still due; whether that was nothing."""
    leases = storage.runs.claim_due(a_scan(limit=50)).leases
    for lease in leases:
        try:
            token = place.redeem(lease, token=f"drain-{lease.run_id}")
            place.commit(lease.run_id, token, status=RunStatus.DONE)
        except (StaleFence, NotFound):
            continue
    return not leases


@pytest.fixture
def pruned_when_read(place: Scene, monkeypatch: pytest.MonkeyPatch) -> list[PruneCount]:
    """What a pruner removes just before a start reads the run that holds its key, which it has seen."""
    passes: list[PruneCount] = []
    database = place.runs._database  # type: ignore[attr-defined]
    execute = database.execute

    def execute_late(session: Any, name: str, parameters: dict[str, Any], **options: Any) -> Any:
        if name in ("fetch_run", "fetch_runs") and not passes:
            passes.append(_prune(place))
        return execute(session, name, parameters, **options)

    place.start("run-1", start_key="one", input_digest="d")
    place.mutate("run-1", status=RunStatus.DONE)
    place.start("run-2", start_key="two", input_digest="d")
    place.clock.advance(YEAR)
    monkeypatch.setattr(database, "execute", execute_late)
    return passes


class TestStartKeys:
    def test_a_run_that_goes_while_its_key_is_met_makes_room_for_a_new_one(
        self, place: Scene, pruned_when_read: list[PruneCount]
    ) -> None:
        started = place.start("run-3", start_key="one", input_digest="d")
        assert [count.runs for count in pruned_when_read] == [1]
        assert (started.created, started.run.id, place.info("run-3").start_key) == (True, "run-3", "one")

    def test_one_that_goes_while_a_batch_meets_its_key_does_so_too(
        self, place: Scene, pruned_when_read: list[PruneCount]
    ) -> None:
        keys = {"run-3": "three", "run-4": "one", "run-5": "one", "run-6": "two", "run-7": None}
        batch = [
            an_initial(a_run(run_id, at=place.now), start_key=key, input_digest=None if key is None else "d")
            for run_id, key in keys.items()
        ]
        started = place.runs.insert_runs(TENANTLESS, batch)
        assert [count.runs for count in pruned_when_read] == [1]
        assert [(start.run.id, start.created) for start in started] == [
            ("run-3", True),
            ("run-4", True),
            ("run-4", False),
            ("run-2", False),
            ("run-7", True),
        ]
