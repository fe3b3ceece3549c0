"""Bad input: a clear error of this package's own, naming the thing, at the earliest moment, and nothing stored."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from typing import Any

import pytest
from support.apps import a_docket, a_graph, a_question
from support.clock import within

from docket_celery import FINISH, START, Docket, Graph, GraphRef, RunStatus
from docket_celery.errors import (
    AwaitTimeout,
    ConfigError,
    DocketError,
    GraphFormatError,
    InactiveRun,
    InvalidGraph,
    InvalidInput,
    KeyConflict,
    NotFound,
    SchemaMismatch,
    StoreUnavailable,
)

Stored = Callable[[], dict[str, int]]
Verb = Callable[[Docket], Any]

NOWHERE = GraphRef(graph_id="greeting", graph_hash="0" * 64)

VERBS: dict[str, Verb] = {
    "save_graph": lambda docket: docket.save_graph(a_graph()),
    "fetch_graph": lambda docket: docket.fetch_graph(NOWHERE),
    "list_graphs": lambda docket: docket.list_graphs(),
    "list_graph_versions": lambda docket: docket.list_graph_versions("greeting"),
    "start_run": lambda docket: docket.start_run("greeting", {"name": "Ada"}),
    "fetch_run": lambda docket: docket.fetch_run("run"),
    "inspect_run": lambda docket: docket.inspect_run("run"),
    "list_runs": lambda docket: docket.list_runs(),
    "list_events": lambda docket: docket.list_events("run"),
    "await_run": lambda docket: docket.await_run("run", timeout=1),
    "resolve_interrupt": lambda docket: docket.resolve_interrupt("run", "interrupt", True),
    "cancel_run": lambda docket: docket.cancel_run("run"),
    "retry_poisoned_run": lambda docket: docket.retry_poisoned_run("run"),
    "drain": lambda docket: docket.drain(),
}


def _refusal(kind: type[DocketError], call: Callable[[], Any], *parts: str) -> str:
    """The message of exactly this error, in which all `parts` occur."""
    with pytest.raises(kind) as refused:
        call()
    assert type(refused.value) is kind
    message = str(refused.value)
    assert all(part in message for part in parts), message
    return message


# -- the database ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_names_an_unreachable_database_soon_and_without_its_password(verb: str, closed_port: int) -> None:
    docket = a_docket(f"postgresql://me:secret@127.0.0.1:{closed_port}/proj")
    with within(8.0):
        message = _refusal(StoreUnavailable, lambda: VERBS[verb](docket), f"127.0.0.1:{closed_port}", "database proj")
    assert "secret" not in message


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_names_the_command_that_makes_a_missing_schema(verb: str, empty_postgres_url: str) -> None:
    docket = a_docket(empty_postgres_url)
    _refusal(SchemaMismatch, lambda: VERBS[verb](docket), "schema 'docket'", "celery -A proj docket migrate")


def test_a_database_that_is_not_set_is_asked_for() -> None:
    docket = a_docket(None)
    _refusal(ConfigError, docket.list_runs, "docket_database_url is not set", "postgresql://")


@pytest.mark.parametrize("url", ["mysql://me:secret@host/db", "postgresql://me:secret@[half/db", "me:secret@host"])
def test_a_url_of_something_else_is_refused_without_being_quoted(url: str) -> None:
    docket = a_docket(url)
    message = _refusal(ConfigError, docket.list_runs, "docket_database_url")
    assert "secret" not in message


# -- graphs ------------------------------------------------------------------------------------------------------------


def _invalid(docket: Docket, stored: Stored, graph: Graph, code: str, path: str, *parts: str) -> None:
    before = stored()
    with pytest.raises(InvalidGraph) as refused:
        docket.save_graph(graph)
    found = [diagnostic for diagnostic in refused.value.diagnostics if diagnostic.code == code]
    assert [diagnostic.path for diagnostic in found] == [path], refused.value
    assert all(part in str(refused.value) for part in (repr(graph.id), *parts)), refused.value
    assert stored() == before


def test_a_node_that_nobody_knows_is_named_and_nothing_is_published(docket: Docket, stored: Stored) -> None:
    _invalid(docket, stored, a_graph("proj.nodes:gret"), "unknown_node", "nodes.greet.call", "'proj.nodes:gret'")


def test_a_cycle_without_a_bound_is_shown_and_nothing_is_published(docket: Docket, stored: Stored) -> None:
    graph = a_graph().node("again", "tests.greet").edge("greet", "again").edge("again", "greet")
    _invalid(docket, stored, graph, "unbounded_cycle", "max_supersteps", "greet -> again -> greet", "max_supersteps")
    docket.save_graph(graph.with_max_supersteps(10))


def test_a_guard_that_does_not_parse_is_quoted_and_nothing_is_published(docket: Docket, stored: Stored) -> None:
    graph = a_graph().node("more", "tests.greet").edge("greet", "more", when="name ==")
    _invalid(docket, stored, graph, "invalid_guard", "edges.greet -> more {name ==}.when", "name ==")


def test_a_guard_on_a_field_that_does_not_exist_names_the_nearest_one(docket: Docket, stored: Stored) -> None:
    guard = "nam == ''"
    graph = a_graph().node("more", "tests.greet").edge("greet", "more", when=guard)
    _invalid(
        docket, stored, graph, "guard_unknown_field", f"edges.greet -> more {{{guard}}}.when", "did you mean 'name'?"
    )


def test_all_problems_of_a_graph_are_told_at_once(docket: Docket, stored: Stored) -> None:
    graph = Graph("broken").node("a", "nobody").edge(START, "b").edge("a", FINISH, when=")").output("gone")
    before = stored()
    with pytest.raises(InvalidGraph) as refused:
        docket.save_graph(graph)
    codes = {diagnostic.code for diagnostic in refused.value.diagnostics}
    assert codes >= {"unknown_node", "unknown_target", "unreachable_node", "invalid_guard", "unknown_output"}
    assert stored() == before


@pytest.mark.parametrize("thing", [a_graph().to_dict(), "greeting", None], ids=["a mapping", "a name", "nothing"])
def test_only_a_graph_can_be_saved(docket: Docket, stored: Stored, thing: Any) -> None:
    before = stored()
    _refusal(InvalidInput, lambda: docket.save_graph(thing), "Graph", type(thing).__name__)
    assert stored() == before


def test_a_document_that_is_no_graph_is_refused_by_path() -> None:
    document = a_graph().to_dict()
    document["nodes"][0]["retry"] = {"max_attempts": "many"}
    _refusal(GraphFormatError, lambda: Graph.from_dict(document), "nodes[0]", "retry", "'many'")


# -- starting ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def ref(docket: Docket) -> GraphRef:
    return docket.save_graph(a_graph())


@pytest.mark.parametrize(
    ("input", "parts"),
    [
        ({"name": 17}, ["'name'", "17", "string"]),
        ({"name": None}, ["'name'", "null"]),
        ({"name": object()}, ["'name'", "$.name", "object"]),
        ({"nmae": "Ada"}, ["'greeting'", "'nmae'", "['name']"]),
        ({"name": "Ada", "greeting": "x"}, ["'greeting'", "['name']"]),
        ({}, ["needs the input 'name'"]),
        (["Ada"], ["mapping", "list"]),
        ("Ada", ["mapping", "str"]),
        ({1: "Ada"}, ["takes no input 1"]),
    ],
    ids=repr,
)
def test_an_input_that_does_not_fit_names_the_field(
    docket: Docket, ref: GraphRef, stored: Stored, input: Any, parts: list[str]
) -> None:
    before = stored()
    _refusal(InvalidInput, lambda: docket.start_run(ref, input), *parts)
    assert stored() == before


@pytest.mark.parametrize(
    ("key", "parts"),
    [
        ("", ["start key", "non-empty", "''"]),
        ("a\x00b", ["start key", "NUL"]),
        ("\ud800", ["start key", "surrogates"]),
        ("k" * 256, ["start key", "at most 255", "256"]),
        (17, ["start key", "string", "17"]),
    ],
    ids=["empty", "nul", "surrogate", "too long", "a number"],
)
def test_a_start_key_that_cannot_be_one_is_refused(
    docket: Docket, ref: GraphRef, stored: Stored, key: Any, parts: list[str]
) -> None:
    before = stored()
    _refusal(InvalidInput, lambda: docket.start_run(ref, {"name": "Ada"}, key=key), *parts)
    assert stored() == before


def test_a_start_key_with_another_input_names_the_run_that_holds_it(
    docket: Docket, ref: GraphRef, stored: Stored
) -> None:
    run = docket.start_run(ref, {"name": "Ada"}, key="k")
    before = stored()
    _refusal(KeyConflict, lambda: docket.start_run(ref, {"name": "Bob"}, key="k"), "'k'", run.id)
    assert docket.start_run(ref, {"name": "Ada"}, key="k").id == run.id
    assert stored() == before


@pytest.mark.parametrize("start_at", [datetime(2026, 1, 1), date(2026, 1, 1), "2026-01-01T00:00:00", 5], ids=repr)
def test_a_start_without_a_time_zone_is_refused(docket: Docket, ref: GraphRef, stored: Stored, start_at: Any) -> None:
    before = stored()
    _refusal(InvalidInput, lambda: docket.start_run(ref, {"name": "Ada"}, start_at=start_at), "start_at", "aware")
    assert stored() == before


@pytest.mark.parametrize("graph", [None, 5, a_graph()], ids=["nothing", "a number", "a graph"])
def test_only_a_version_or_a_graph_id_can_be_started(docket: Docket, stored: Stored, graph: Any) -> None:
    before = stored()
    _refusal(InvalidInput, lambda: docket.start_run(graph, {}), "GraphRef", type(graph).__name__)
    assert stored() == before


@pytest.mark.parametrize("graph", ["grating", "", "a\x00b", NOWHERE], ids=["unknown", "empty", "nul", "no version"])
def test_a_graph_that_was_never_published_is_not_found(docket: Docket, ref: GraphRef, graph: Any) -> None:
    _refusal(NotFound, lambda: docket.start_run(graph, {"name": "Ada"}), "no graph", "in this scope")


def test_a_connection_of_another_kind_is_refused(docket: Docket, ref: GraphRef, stored: Stored) -> None:
    before = stored()
    start = lambda: docket.start_run(ref, {"name": "Ada"}, connection=object())  # noqa: E731
    _refusal(InvalidInput, start, "psycopg connection", "object")
    assert stored() == before


# -- running and answering ---------------------------------------------------------------------------------------------


def test_a_node_that_writes_an_unknown_field_fails_its_run_by_both_names(docket: Docket) -> None:
    run = docket.start_run(docket.save_graph(a_graph("tests.misspelt")), {"name": "Ada"})
    docket.drain()
    failed = docket.fetch_run(run.id)
    assert failed.status is RunStatus.FAILED
    assert failed.failure is not None
    assert (failed.failure.code, failed.failure.node) == ("unknown_field", "greet")
    assert "node 'greet' writes field 'greting'" in failed.failure.message
    assert failed.fields == {"name": "Ada"}


@pytest.fixture
def asked(docket: Docket) -> tuple[str, str]:
    """A run that waits for an answer, and the id of its interrupt."""
    run = docket.start_run(docket.save_graph(a_question()))
    docket.drain()
    return run.id, docket.fetch_run(run.id).interrupts[0].id


@pytest.mark.parametrize(
    "answer", [1, "true", None, {"yes": True}, object()], ids=["1", "text", "null", "map", "object"]
)
def test_an_answer_that_does_not_fit_is_refused_and_the_question_stays_open(
    docket: Docket, stored: Stored, asked: tuple[str, str], answer: Any
) -> None:
    before = stored()
    _refusal(InvalidInput, lambda: docket.resolve_interrupt(*asked, answer), "approved")
    run = docket.fetch_run(asked[0])
    assert (run.status, [open_.id for open_ in run.interrupts]) == (RunStatus.WAITING, [asked[1]])
    assert stored() == before


def test_an_answer_to_another_question_names_those_that_are_open(docket: Docket, asked: tuple[str, str]) -> None:
    _refusal(NotFound, lambda: docket.resolve_interrupt(asked[0], "other", True), "'other'", asked[1])


def test_an_ended_run_takes_no_answer_and_no_cancellation_twice(docket: Docket, asked: tuple[str, str]) -> None:
    run_id = asked[0]
    docket.cancel_run(run_id)
    _refusal(InactiveRun, lambda: docket.resolve_interrupt(*asked, True), run_id, "cancelled")
    assert docket.cancel_run(run_id).status is RunStatus.CANCELLED


@pytest.mark.parametrize("reason", [5, None, "x" * 4_001], ids=["a number", "nothing", "too long"])
def test_a_reason_that_cannot_be_kept_cancels_nothing(docket: Docket, asked: tuple[str, str], reason: Any) -> None:
    _refusal(InvalidInput, lambda: docket.cancel_run(asked[0], reason=reason), "reason", "4000")
    assert docket.fetch_run(asked[0]).status is RunStatus.WAITING


def test_a_reason_with_characters_that_postgresql_lacks_is_kept_readable(
    docket: Docket, asked: tuple[str, str]
) -> None:
    docket.cancel_run(asked[0], reason="a\x00b\ud800")
    assert docket.list_events(asked[0]).events[-1].data == {"reason": "a\\x00b\\ud800"}


# -- reading -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run_id", ["nobody", "", "a\x00b", "\ud800", "x" * 300, None, 5], ids=ascii)
def test_a_run_that_does_not_exist_is_not_found_by_any_verb(docket: Docket, run_id: Any) -> None:
    for verb in (docket.fetch_run, docket.inspect_run, docket.list_events, docket.cancel_run):
        _refusal(NotFound, lambda verb=verb: verb(run_id), "no run", "in this scope")
    _refusal(NotFound, lambda: docket.await_run(run_id, timeout=1), "no run")
    _refusal(NotFound, lambda: docket.retry_poisoned_run(run_id), "no run")
    _refusal(NotFound, lambda: docket.resolve_interrupt(run_id, "interrupt", 1), "no run")


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "zzz",
        "e30=",
        "W10=",
        "bnVsbA==",
        "WzFlMzAwLCJhIl0=",
        "W25hbiwiYSJd",
        "WzEsMl0=",
        "WzEsICJhXHUwMDAwIl0=",
        "é",
        5,
    ],
)
def test_a_cursor_that_no_page_returned_is_refused(docket: Docket, cursor: Any) -> None:
    _refusal(InvalidInput, lambda: docket.list_runs(before=cursor), "cursor", repr(cursor))


@pytest.mark.parametrize("limit", [0, -1, 1_001, 2**70, "5", None, 2.5, True], ids=repr)
def test_a_page_has_from_one_to_a_thousand_rows(docket: Docket, limit: Any) -> None:
    run = docket.start_run(docket.save_graph(a_graph()), {"name": "Ada"})
    for page in (
        lambda: docket.list_runs(limit=limit),
        lambda: docket.list_events(run.id, limit=limit),
        lambda: docket.list_graphs(limit=limit),
        lambda: docket.list_graph_versions("greeting", limit=limit),
    ):
        _refusal(InvalidInput, page, "limit", "from 1 to 1000", repr(limit))


@pytest.mark.parametrize("after", [-1, 2**63, "1", None, True], ids=repr)
def test_a_position_among_events_that_cannot_be_one_is_refused(docket: Docket, after: Any) -> None:
    _refusal(InvalidInput, lambda: docket.list_events("run", after_seq=after), "after_seq", repr(after))


def test_filters_that_nothing_could_match_are_refused(docket: Docket) -> None:
    _refusal(InvalidInput, lambda: docket.list_runs(status="finished"), "status", "done", "'finished'")
    _refusal(InvalidInput, lambda: docket.list_runs(status=[]), "status")
    _refusal(InvalidInput, lambda: docket.list_runs(poisoned="no"), "poisoned", "'no'")  # type: ignore[arg-type]
    _refusal(InvalidInput, lambda: docket.list_runs(status=5), "status", "5")  # type: ignore[arg-type]
    _refusal(InvalidInput, lambda: docket.list_runs(graph_id="a\x00b"), "graph id", "NUL")
    _refusal(InvalidInput, lambda: docket.list_graphs(after="\ud800"), "graph id", "surrogates")
    _refusal(InvalidInput, lambda: docket.list_graph_versions(""), "graph id", "non-empty")
    _refusal(InvalidInput, lambda: docket.fetch_graph("greeting"), "GraphRef", "str")  # type: ignore[arg-type]


def test_waiting_and_draining_take_numbers(docket: Docket) -> None:
    run = docket.start_run(docket.save_graph(a_graph()), {"name": "Ada"})
    _refusal(InvalidInput, lambda: docket.await_run(run.id, timeout="1"), "timeout", "'1'")  # type: ignore[arg-type]
    _refusal(InvalidInput, lambda: docket.await_run(run.id, timeout=float("nan")), "timeout", "nan")
    _refusal(AwaitTimeout, lambda: docket.await_run(run.id, timeout=0), run.id, "ready", "step 1")
    for limit in (0, -1, "1", True):
        _refusal(InvalidInput, lambda limit=limit: docket.drain(limit=limit), "limit", repr(limit))
    assert docket.fetch_run(run.id).status is RunStatus.RUNNING


# -- tenants -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tenant", ["", "a\x00b", "x" * 256, None, 5], ids=["empty", "nul", "too long", "nothing", "5"])
def test_a_tenant_that_cannot_be_one_is_refused(docket: Docket, tenant: Any) -> None:
    _refusal(InvalidInput, lambda: docket.for_tenant(tenant), "tenant")


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "drain"])
def test_where_tenants_are_required_every_verb_asks_for_one(database_url: str, stored: Stored, verb: str) -> None:
    docket = a_docket(database_url, docket_tenant_mode="required")
    before = stored()
    _refusal(ConfigError, lambda: VERBS[verb](docket), "docket_tenant_mode", "'required'", "for_tenant")
    assert stored() == before


def test_a_tenant_sees_nothing_of_another(docket: Docket, asked: tuple[str, str]) -> None:
    stranger = docket.for_tenant("stranger")
    _refusal(NotFound, lambda: stranger.fetch_run(asked[0]), asked[0])
    _refusal(NotFound, lambda: stranger.resolve_interrupt(*asked, True), asked[0])
    _refusal(NotFound, lambda: stranger.start_run("question"), "'question'")
    assert stranger.list_runs().runs == ()
