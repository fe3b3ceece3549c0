"""Rows that nobody can read: each is named, bounded and ended by itself, and every other run goes on."""

from __future__ import annotations

import psycopg
import pytest

from docket_celery.client import TenantClient
from docket_celery.compiler.nodes import local_resolver
from docket_celery.config import Config
from docket_celery.engine import build
from docket_celery.errors import CorruptRecord, DocketError
from docket_celery.graph.document import Graph
from docket_celery.graph.elements import FINISH, START
from docket_celery.run.document import RunStatus
from docket_celery.storage.postgres import open_storage


def add(total: int) -> dict[str, int]:
    return {"total": total + 1}


GRAPH = Graph("adding").input("total", int).node("add", add).edge(START, "add").edge("add", FINISH)


@pytest.fixture
def docket(postgres_url: str) -> TenantClient:
    """The verbs over a database of one's own, with limits that come soon."""
    config = Config(max_claim_attempts=2, max_claim_abandons=1, abandon_backoff=0.001, abandon_backoff_cap=0.001)
    storage = open_storage(postgres_url, max_connections=2)
    client = TenantClient(build(config, storage, local_resolver(GRAPH), pause=lambda seconds: None))
    client.save_graph(GRAPH)
    return client


CORRUPT = {
    "a document of a later version": """UPDATE runs SET state = '{"v":99}' WHERE id = %(id)s""",
    "a document cut short": """UPDATE runs SET state = '{"v":1,"tasks":[{"node":"add"}]}' WHERE id = %(id)s""",
    "an endless start": "UPDATE runs SET started_at = 'infinity' WHERE id = %(id)s",
    "an endless update": "UPDATE runs SET updated_at = '-infinity' WHERE id = %(id)s",
    "a number too long for Python": "UPDATE run_fields SET value = repeat('9', 5000)::json WHERE run_id = %(id)s",
    "a value nested too deep": "UPDATE run_fields SET value = (repeat('[', 3000) || repeat(']', 3000))::json"
    " WHERE run_id = %(id)s",
    "items of what is no list": "INSERT INTO run_chunks (run_id, name, seq, items) VALUES (%(id)s, 'total', 1, '[1]')",
}


@pytest.mark.parametrize("change", CORRUPT.values(), ids=CORRUPT.keys())
def test_it_is_named_halted_and_ended_while_the_others_go_on(
    docket: TenantClient, beside: psycopg.Connection, change: str
) -> None:
    first, broken, last = (docket.start_run("adding", {"total": 1}).id for _ in range(3))
    beside.execute(change.encode(), {"id": broken})
    for _ in range(4):
        docket.drain()
    assert [docket.fetch_run(id).fields["total"] for id in (first, last)] == [2, 2]
    listed = {run.run_id: run for run in docket.list_runs().runs}
    assert {first, last} <= listed.keys()
    assert docket.storage.fleet.backlog(orphan_ttl=docket.engine.orphan_ttl).poisoned == 1
    for read in (docket.fetch_run, docket.inspect_run, docket.cancel_run):
        with pytest.raises(CorruptRecord, match=broken):
            read(broken)
    ended = docket.cancel_run(broken, reason="cannot be read", force=True)
    assert (ended.id, ended.status) == (broken, RunStatus.CANCELLED)
    assert docket.storage.fleet.backlog(orphan_ttl=docket.engine.orphan_ttl).poisoned == 0
    assert docket.cancel_run(broken, force=True).status is RunStatus.CANCELLED
    assert docket.drain() == 0


def test_a_document_that_was_ended_by_force_can_be_read_again(docket: TenantClient, beside: psycopg.Connection) -> None:
    run = docket.start_run("adding", {"total": 1})
    beside.execute("""UPDATE runs SET state = '{"v":99}'""")
    docket.cancel_run(run.id, force=True)
    assert docket.fetch_run(run.id).fields == {"total": 1}


def test_a_run_that_can_be_read_is_cancelled_as_ever_even_by_force(docket: TenantClient) -> None:
    run = docket.start_run("adding", {"total": 1})
    assert docket.cancel_run(run.id, force=True, reason="no more").fields == {"total": 1}
    assert docket.list_events(run.id).events[-1].data == {"reason": "no more"}


def test_force_ends_a_run_whose_event_counter_lags_behind(docket: TenantClient, beside: psycopg.Connection) -> None:
    run = docket.start_run("adding", {"total": 1})
    beside.execute("UPDATE run_events SET seq = seq + 10")
    beside.execute(
        "INSERT INTO run_events SELECT run_id, %s, type, step, at, node, data FROM run_events LIMIT 1",
        (run.event_seq + 1,),
    )
    with pytest.raises(DocketError):
        docket.cancel_run(run.id)
    assert docket.cancel_run(run.id, force=True).event_seq == 12


def test_a_run_whose_graph_is_missing_is_halted_and_the_others_go_on(
    docket: TenantClient, beside: psycopg.Connection
) -> None:
    broken, good = (docket.start_run("adding", {"total": number}).id for number in (1, 2))
    beside.execute("SET session_replication_role = replica")
    beside.execute("UPDATE runs SET graph_hash = 'gone' WHERE id = %s", (broken,))
    with pytest.raises(DocketError, match="missing"):
        docket.drain()
    docket.drain()
    assert docket.fetch_run(good).status is RunStatus.DONE
    assert docket.inspect_run(broken).view == "claimed"
    assert docket.cancel_run(broken).status is RunStatus.CANCELLED


def test_an_event_that_cannot_be_read_is_named_and_never_skipped(
    docket: TenantClient, beside: psycopg.Connection
) -> None:
    broken, good = (docket.start_run("adding", {"total": number}).id for number in (1, 2))
    docket.drain()
    beside.execute("UPDATE run_events SET type = 'later' WHERE run_id = %s AND seq = 2", (broken,))
    with pytest.raises(CorruptRecord, match=f"event 2 of run '{broken}'"):
        docket.list_events(broken)
    assert docket.list_events(broken, after_seq=2).events[0].seq == 3
    assert docket.list_events(good).events
    assert docket.fetch_run(broken).status is RunStatus.DONE
