"""Awkward values on their whole way: given to a verb or returned by a node, stored, and read back or refused."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any
from uuid import UUID

import psycopg
import pytest
from support.clock import eventually

from docket_celery.client import TenantClient
from docket_celery.compiler.nodes import chain, local_resolver
from docket_celery.config import Config
from docket_celery.embedded.postgres import EmbeddedPostgres
from docket_celery.engine import build
from docket_celery.errors import DocketError, InvalidInput, ValueRefused
from docket_celery.graph.document import Graph
from docket_celery.graph.elements import FINISH, START, Retry
from docket_celery.run.document import Run, RunStatus
from docket_celery.runtime.node import Interrupt
from docket_celery.storage.postgres import open_storage

MIB = 1024 * 1024
made: list[Callable[[], Any]] = []
"""What the node `make` returns, or raises, next."""


def make() -> dict[str, Any]:
    return {"value": made[0](), "log": "made"}


def copy(value: Any) -> dict[str, Any]:
    return {"second": value, "log": "copied"}


def ask(answer: Any = None) -> Any:
    return Interrupt("answer", payload=made[0]()) if answer is None else {"second": answer}


RETRY = Retry(max_attempts=3, backoff=0.001)
MAKING = (
    Graph("making")
    .field("value", Any)
    .field("second", Any)
    .field("log", list[str], reducer="append")
    .node("make", make, retry=RETRY)
    .node("copy", copy)
    .edge(START, "make")
    .edge("make", "copy")
    .edge("copy", FINISH)
)
COPYING = Graph("copying").input("value", Any).field("second", Any).field("log", list[str], reducer="append")
COPYING = COPYING.node("copy", copy).edge(START, "copy").edge("copy", FINISH)
ASKING = Graph("asking").field("answer", Any).field("second", Any).node("ask", ask)
ASKING = ASKING.edge(START, "ask").edge("ask", FINISH)


@pytest.fixture(scope="module")
def url(postgres_server: EmbeddedPostgres, postgres_template: str) -> str:
    """One database for the module; each test looks only at its own runs."""
    return postgres_server.create_database("awkward", template=postgres_template)


def _client(url: str, *graphs: Graph, **options: Any) -> TenantClient:
    resolver = chain(*map(local_resolver, graphs or (MAKING, COPYING, ASKING)))
    config = Config(abandon_backoff=0.001, **options)
    return TenantClient(build(config, open_storage(url, max_connections=2), resolver, pause=lambda seconds: None))


@pytest.fixture(scope="module", params=["one drain", "a reload at each step"])
def docket(request: pytest.FixtureRequest, url: str) -> TenantClient:
    """The verbs, with runs that are kept in memory from step to step, or read anew at each."""
    options = {} if request.param == "one drain" else {"drain_max_moments": 1}
    client = _client(url, max_value_bytes=MIB, **options)
    for graph in (MAKING, COPYING, ASKING):
        client.save_graph(graph)
    return client


@pytest.fixture
def beside(url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET search_path = docket")
        yield connection


def _made(docket: TenantClient, value: Callable[[], Any]) -> Run:
    made[:] = [value]
    run = docket.start_run("making")
    eventually(lambda: docket.drain() == 0 and docket.fetch_run(run.id).status.is_terminal)
    return docket.fetch_run(run.id)


def _raise(error: Exception) -> Any:
    raise error


KEPT: dict[str, tuple[Any, Any]] = {
    "NUL": ("a\x00b", "a\x00b"),
    "a key with NUL": ({"k\x00": 1}, {"k\x00": 1}),
    "a lone surrogate": ("\ud800", "\ud800"),
    "a file name": ("x\udcff", "x\udcff"),
    "a character of four bytes": ("\U0001f600", "\U0001f600"),
    "2**63 - 1": (2**63 - 1, 2**63 - 1),
    "2**63": ([2**63], [2**63]),
    "-2**63 - 1": (-(2**63) - 1, -(2**63) - 1),
    "10**400": (10**400, 10**400),
    "10**4299": (10**4299, 10**4299),
    "a UUID": (UUID(int=1), str(UUID(int=1))),
    "a Decimal": (Decimal("1.10"), "1.10"),
    "an instant": (datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), "2026-01-02T03:04:05.000006+00:00"),
    "a date": (date(2026, 1, 2), "2026-01-02"),
    "a time": (time(1, 2, 3), "01:02:03"),
    "a tuple": ((1, (2,)), [1, [2]]),
    "keys in their order": ({"b": 1, "a": 2, "aa": 0}, {"b": 1, "a": 2, "aa": 0}),
    "an Enum": (Enum("Colour", {"RED": "red"})["RED"], "red"),
    "an IntEnum": (IntEnum("Number", {"ONE": 1})["ONE"], 1),
    "nested 150 deep": (eval("[" * 150 + "]" * 150), eval("[" * 150 + "]" * 150)),
    "nearly too large": ("x" * (MIB - 1024), "x" * (MIB - 1024)),
}


@pytest.mark.parametrize(("given", "form"), KEPT.values(), ids=KEPT.keys())
def test_a_value_is_kept_in_one_form_wherever_it_enters(docket: TenantClient, given: Any, form: Any) -> None:
    run = _made(docket, lambda: given)
    assert run.failure is None
    assert [repr(run.fields[name]) for name in ("value", "second")] == [repr(form)] * 2
    started = docket.start_run("copying", {"value": given})
    asking = docket.start_run("asking")
    docket.drain()
    assert repr(docket.fetch_run(started.id).fields["second"]) == repr(form)
    (question,) = docket.fetch_run(asking.id).interrupts
    assert repr(question.payload) == repr(form)
    docket.resolve_interrupt(asking.id, question.id, given)
    docket.drain()
    assert repr(docket.fetch_run(asking.id).fields["second"]) == repr(form)


@dataclass
class Odd:
    value: Any


def _circle() -> list[Any]:
    circle: list[Any] = []
    circle.append(circle)
    return circle


def _nested(kind: type, depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if kind is list else {"k": value}
    return value


REFUSED: dict[str, tuple[Callable[[], Any], str, str]] = {
    "10**5000": (lambda: {"k": [10**5000]}, "$.value.k[0]", "value_refused"),
    "merging keys": (lambda: [{1: "int", "1": "str"}], "$.value[0]", "value_refused"),
    "a key of True": (lambda: {True: 1}, "$.value", "value_refused"),
    "a key of None": (lambda: {None: 1}, "$.value", "value_refused"),
    "a span of time": (lambda: timedelta(1), "$.value", "value_refused"),
    "bytes": (lambda: b"x", "$.value", "value_refused"),
    "a bytearray": (lambda: bytearray(b"x"), "$.value", "value_refused"),
    "a set": (lambda: [1, 2, {"k": {1}}], "$.value[2].k", "value_refused"),
    "a frozenset": (lambda: frozenset({1}), "$.value", "value_refused"),
    "a generator": (lambda: (number for number in range(3)), "$.value", "value_refused"),
    "an object inside a dataclass": (lambda: Odd(object()), "$.value.value", "value_refused"),
    "not a number": (lambda: float("nan"), "$.value", "value_refused"),
    "an instant without a zone": (lambda: datetime(2026, 1, 2), "$.value", "value_refused"),
    "a list 900 deep": (lambda: _nested(list, 900), "$.value", "value_refused"),
    "a list 10,000 deep": (lambda: _nested(list, 10_000), "$.value", "value_refused"),
    "a dict 10,000 deep": (lambda: _nested(dict, 10_000), "$.value", "value_refused"),
    "a list in itself": (_circle, "$.value", "value_refused"),
    "one byte too many": (lambda: "x" * (MIB - 1), "$.value", "payload_too_large"),
    "64 MiB": (lambda: "x" * (64 * MIB), "$.value", "payload_too_large"),
}


@pytest.mark.parametrize(("value", "path", "code"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_kept_fails_at_once_by_path_and_harms_no_other(
    docket: TenantClient, value: Callable[[], Any], path: str, code: str
) -> None:
    beside = [docket.start_run("copying", {"value": number}).id for number in range(3)]
    calls: list[int] = []

    def counted() -> Any:
        calls.append(1)
        return value()

    run = _made(docket, counted)
    assert run.status is RunStatus.FAILED
    assert run.failure is not None
    assert (run.failure.code, path in run.failure.message) == (code, True), run.failure
    assert len(run.failure.message) < 5_000
    assert len(calls) == 1
    assert [docket.fetch_run(id).status for id in beside] == [RunStatus.DONE] * 3


@pytest.mark.parametrize(("value", "path", "code"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_kept_is_refused_at_the_verb_and_nothing_is_stored(
    docket: TenantClient, beside: psycopg.Connection, value: Callable[[], Any], path: str, code: str
) -> None:
    before = beside.execute("SELECT count(*) FROM runs").fetchone()
    with pytest.raises((InvalidInput, ValueRefused)) as refused:
        docket.start_run("copying", {"value": value()})
    assert len(str(refused.value)) < 5_000
    assert beside.execute("SELECT count(*) FROM runs").fetchone() == before
    made[:] = [lambda: None]
    asking = docket.start_run("asking")
    docket.drain()
    (question,) = docket.fetch_run(asking.id).interrupts
    with pytest.raises((InvalidInput, ValueRefused)):
        docket.resolve_interrupt(asking.id, question.id, value())
    assert docket.fetch_run(asking.id).interrupts == (question,)


@pytest.mark.parametrize("text", ["a\x00b", "a\ud800b"])
def test_an_exception_with_such_text_fails_the_run_readably(docket: TenantClient, text: str) -> None:
    run = _made(docket, lambda: _raise(ValueError(text)))
    assert run.failure is not None
    assert run.failure.message.isprintable()
    assert run.failure.message.startswith("a\\")
    assert docket.list_events(run.id).events[-1].type.value == "run_failed"


@pytest.mark.parametrize("name", ["a\x00b", "a\ud800b", ""])
def test_an_identifier_with_such_text_is_refused_before_any_statement(name: str) -> None:
    nowhere = _client("postgresql://127.0.0.1:1/nowhere")
    for call in (
        lambda: nowhere.for_tenant(name),
        lambda: nowhere.start_run("making", key=name),
        lambda: nowhere.save_graph(Graph(name).node("make", make).edge(START, "make").edge("make", FINISH)),
    ):
        with pytest.raises(DocketError) as refused:
            call()
        assert "nowhere" not in str(refused.value)


def test_names_of_the_greatest_length_in_any_script_carry_a_run_to_its_end(url: str) -> None:
    rng = random.Random(1)
    # Neither repeated nor alike, so that no index entry gets shorter by compression.
    tenant, key, graph_id = ("".join(chr(rng.randint(0x20000, 0x2A6DF)) for _ in range(255)) for _ in range(3))
    docket = _client(url).for_tenant(tenant)
    graph = Graph(graph_id).input("value", Any).field("second", Any).field("log", list[str], reducer="append")
    graph = graph.node("copy", copy).edge(START, "copy").edge("copy", FINISH)
    ref = docket.save_graph(graph)
    run = docket.start_run(ref, {"value": key}, key=key)
    assert docket.start_run(ref, {"value": key}, key=key).id == run.id
    docket.drain()
    assert docket.fetch_run(run.id).fields["second"] == key
    assert [summary.run_id for summary in docket.list_runs(graph_id=graph_id).runs] == [run.id]
    assert docket.list_graphs()[0].ref == ref
    for longer in (tenant + "x", key + "x"):
        with pytest.raises(InvalidInput, match="255"):
            docket.for_tenant(longer)
        with pytest.raises(InvalidInput, match="255"):
            docket.start_run(ref, {"value": 1}, key=longer)


def test_counters_at_the_edge_of_32_bits_go_on_to_the_end(docket: TenantClient, beside: psycopg.Connection) -> None:
    made[:] = [lambda: 1]
    control, run = docket.start_run("making"), docket.start_run("making")
    edge = 2**31 - 1
    beside.execute("UPDATE runs SET checkpoint_seq = %s, event_seq = %s WHERE id = %s", (edge, edge, run.id))
    docket.drain()
    done, there = docket.fetch_run(run.id), docket.fetch_run(control.id)
    assert done.status is there.status is RunStatus.DONE
    assert done.checkpoint_seq - edge == there.checkpoint_seq - control.checkpoint_seq
    assert done.event_seq - edge == there.event_seq - control.event_seq


def test_a_sum_counts_on_beyond_64_bits(url: str) -> None:
    graph = (
        Graph("summing")
        .field("value", int, reducer="sum", default=2**63 - 1)
        .field("second", Any)
        .field("log", list[str], reducer="append")
        .node("make", make)
        .edge(START, "make")
        .edge("make", FINISH)
    )
    made[:] = [lambda: 1]
    docket = _client(url, graph)
    run = docket.start_run(docket.save_graph(graph))
    docket.drain()
    assert docket.fetch_run(run.id).fields["value"] == 2**63
