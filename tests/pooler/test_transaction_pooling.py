"""Behind a transaction pooler each transaction may meet another server session: nothing may live in one."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import psycopg
import pytest
from support.builders import a_scan
from support.clock import eventually
from support.meeting import Meetings
from support.pooled import Pooled

from docket_celery.client import TenantClient
from docket_celery.compiler.nodes import local_resolver
from docket_celery.config import Config
from docket_celery.dispatcher import Dispatcher
from docket_celery.engine import build
from docket_celery.graph.document import Graph
from docket_celery.graph.elements import FINISH, START
from docket_celery.run.document import RunStatus
from docket_celery.shift import Shift
from docket_celery.storage.contracts.claims import Demand
from docket_celery.storage.contracts.retention import PrunePolicy
from docket_celery.storage.contracts.values import SYSTEM
from docket_celery.storage.postgres import migrate, open_storage
from docket_celery.storage.postgres.listener import Listener, listening_state

RUNS, NODES, WORKERS = 200, 5, 4
SESSION_ERRORS = re.compile(r"^(26000|42P05|08P01) ", re.MULTILINE)
"""No such prepared statement, there is one already, it takes other parameters."""


def step(log: list[str]) -> dict[str, str]:
    return {"log": "x"}


def _line(length: int) -> Graph:
    graph = Graph("line").field("log", list[str], reducer="append", default=[])
    names = [f"s{number}" for number in range(1, length + 1)]
    for name in names:
        graph = graph.node(name, step)
    for source, target in zip([START, *names], [*names, FINISH], strict=True):
        graph = graph.edge(source, target)
    return graph


GRAPH = _line(NODES)


def _client(url: str) -> TenantClient:
    storage = open_storage(url, max_connections=2)
    pause = threading.Event()
    return TenantClient(
        build(Config(), storage, local_resolver(GRAPH), pause=lambda seconds: bool(pause.wait(seconds)))
    )


def test_two_hundred_runs_a_migration_and_a_pruning_leave_no_trace_of_sessions(pooled: Pooled) -> None:
    began = pooled.log.stat().st_size
    migrate.upgrade(pooled.url)
    migrate.check(pooled.url)
    starter = _client(pooled.url)
    ref = starter.save_graph(GRAPH)
    runs = [starter.start_run(ref, {}, key=f"key-{number}") for number in range(RUNS)]

    def work(_: int) -> int:
        client = _client(pooled.url)
        drained = client.drain()
        client.cancel_run(client.start_run(ref, {}).id)
        return drained

    with ThreadPoolExecutor(WORKERS + 1) as pool:
        migration = pool.submit(migrate.upgrade, pooled.url)
        assert sum(pool.map(work, range(WORKERS))) >= RUNS
        migration.result()
    ended = [starter.fetch_run(run.id) for run in runs]
    assert {run.status for run in ended} == {RunStatus.DONE}
    assert all(run.fields["log"] == ["x"] * NODES for run in ended)

    policy = PrunePolicy(runs=timedelta(0), events=timedelta(0), batch=60)
    counts = []
    while not counts or counts[-1].more:
        counts.append(starter.storage.retention.prune(SYSTEM, policy))
    assert [count.runs for count in counts] == [60, 60, 60, RUNS + WORKERS - 180]
    assert not any(count.busy for count in counts)

    with psycopg.connect(pooled.direct_url) as direct:
        assert direct.execute("SELECT count(*) FROM docket.runs").fetchone() == (0,)
        assert direct.execute("SELECT FROM pg_locks WHERE locktype = 'advisory'").fetchall() == []
    log = pooled.log.read_bytes()[began:].decode(errors="replace")
    assert SESSION_ERRORS.findall(log) == []


def test_a_start_inside_the_callers_transaction_prepares_nothing_on_the_callers_connection(pooled: Pooled) -> None:
    migrate.upgrade(pooled.url)
    client = _client(pooled.url)
    ref = client.save_graph(GRAPH)
    with psycopg.connect(pooled.url) as mine:
        for _ in range(3):
            client.start_run(ref, {}, connection=mine)
            mine.commit()
        left = mine.execute("SELECT name FROM pg_prepared_statements").fetchall()
    assert left == []
    assert client.drain() == 3


def test_nudges_and_cancels_leave_no_bound_and_no_statement_in_a_session(pooled: Pooled) -> None:
    began = pooled.log.stat().st_size
    migrate.upgrade(pooled.url)
    client = _client(pooled.url)
    ref = client.save_graph(GRAPH)
    with psycopg.connect(pooled.direct_url, autocommit=True) as direct, direct.transaction():
        client.start_run(ref, {})
        direct.execute("SELECT FROM docket.dispatch FOR UPDATE")
        assert not client.storage.runs.claim_due(a_scan(demand=Demand(gate="nudge", slots=1))).scanned
    for _ in range(3):
        shift = Shift(client.engine, Dispatcher(client.engine, len))
        assert str(shift.answer()).endswith("parked:terminal")
        client.cancel_run(client.start_run(ref, {}).id)
        client.start_run(ref, {})
    with (
        psycopg.connect(pooled.url, autocommit=True) as one,
        psycopg.connect(pooled.url, autocommit=True) as other,
        one.transaction(),
        other.transaction(),
    ):
        for session in (one, other):
            assert session.execute("SHOW lock_timeout").fetchone() == ("0",)
            assert session.execute("SHOW idle_in_transaction_session_timeout").fetchone() == ("0",)
            assert session.execute("SELECT name FROM pg_prepared_statements").fetchall() == []
    assert SESSION_ERRORS.findall(pooled.log.read_bytes()[began:].decode(errors="replace")) == []


def test_a_listener_behind_a_pooler_switches_itself_off_with_one_warning_and_leaves_no_lock(
    pooled: Pooled, caplog: pytest.LogCaptureFixture
) -> None:
    migrate.upgrade(pooled.url)
    heard: list[int] = []
    listener = Listener(pooled.url, schema="docket", heard=lambda: heard.append(1), interval=0.05)
    for _ in range(2):
        listener.start()
        eventually(lambda: not [thread for thread in threading.enumerate() if thread.name == "docket-listener"])
        listener.stop()
    assert caplog.text.count("docket_listen is off in this worker") == 1
    assert heard == []
    assert listening_state(pooled.url, schema="docket") == "pooled"
    with psycopg.connect(pooled.direct_url) as direct:
        assert direct.execute("SELECT FROM pg_locks WHERE locktype = 'advisory'").fetchall() == []


def test_behind_a_pooler_a_listener_past_it_hears_of_a_start(pooled: Pooled) -> None:
    migrate.upgrade(pooled.url)
    ref = _client(pooled.url).save_graph(GRAPH)
    heard: list[int] = []
    listener = Listener(pooled.direct_url, schema="docket", heard=lambda: heard.append(1), interval=0.05)
    listener.start()
    eventually(lambda: heard == [1])
    storage = open_storage(pooled.url, notify=True)
    TenantClient(build(Config(), storage, local_resolver(GRAPH), pause=lambda _: None)).start_run(ref, {})
    eventually(lambda: heard == [1, 1])
    listener.stop()


def test_commits_that_meet_behind_a_pooler_share_statements_and_leave_no_trace_of_sessions(pooled: Pooled) -> None:
    began = pooled.log.stat().st_size
    migrate.upgrade(pooled.url)
    client = _client(pooled.url)
    ref = client.save_graph(GRAPH)
    runs = [client.start_run(ref, {}) for _ in range(RUNS)]
    meet = Meetings(client.storage.runs)
    with ThreadPoolExecutor(9) as pool:
        with meet.gathering(pool):
            drains = [pool.submit(client.drain) for _ in range(8)]
            eventually(lambda: meet.waiting == 8)
        assert sum(drain.result() for drain in drains) >= RUNS
    assert {client.fetch_run(run.id).status for run in runs} == {RunStatus.DONE}
    assert all(client.fetch_run(run.id).fields["log"] == ["x"] * NODES for run in runs)
    shared = [name for name in meet.statements if name.startswith("commit_all")]
    alone = [name for name in meet.statements if name.startswith("commit_") and name not in shared]
    assert len(shared) > 0
    assert len(shared) + len(alone) < RUNS * NODES
    log = pooled.log.read_bytes()[began:].decode(errors="replace")
    assert SESSION_ERRORS.findall(log) == []
