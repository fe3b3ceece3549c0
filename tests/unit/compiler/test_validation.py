"""Every rule for graphs, by the code of its diagnostic."""

from __future__ import annotations

import difflib
import functools
from typing import Any

import pytest

from docket_celery.compiler import local_resolver, publishable, verify
from docket_celery.graph.diagnostics import Severity
from docket_celery.graph.document import Graph
from docket_celery.graph.elements import FINISH, START, ConstantInput, Edge, FieldInput, Retry


def noop() -> None: ...


def needs(total: float, discount: float = 0.0) -> None: ...


SOUND = Graph("g").field("total", float).node("a", noop).edge(START, "a")


def found(graph: Graph, **options: Any) -> list[tuple[str, str]]:
    return [(diagnostic.code, diagnostic.path) for diagnostic in verify(graph, local_resolver(graph), **options)]


def test_a_sound_graph_has_no_diagnostics() -> None:
    graph = (
        SOUND.node("b", noop)
        .node("c", needs)
        .edge("a", "b", when="total > 1.0")
        .edge("a", "c")
        .edge(["b", "c"], FINISH)
        .output("total")
    )
    assert found(graph) == []
    assert verify(graph) == ()


@pytest.mark.parametrize(
    ("graph", "code", "path"),
    [
        (Graph("x" * 256).node("a", noop).edge(START, "a"), "invalid_graph_id", "id"),
        (Graph("a\x00b").node("a", noop).edge(START, "a"), "invalid_graph_id", "id"),
        (SOUND.node("b c", noop).edge("a", "b c"), "invalid_node_id", "nodes.b c"),
        (SOUND.node("b@1", noop).edge("a", "b@1"), "invalid_node_id", "nodes.b@1"),
        (Graph("g").node("a", noop).edge("a", FINISH), "no_start", "edges"),
        (SOUND.edge("b", "a"), "unknown_source", "edges.b -> a"),
        (SOUND.edge("a", "b"), "unknown_target", "edges.a -> b"),
        (SOUND.edge(FINISH, "a"), "finish_as_source", "edges.$finish -> a"),
        (SOUND.edge("a", START), "start_as_target", "edges.a -> $start"),
        (SOUND.edge([START, "a"], FINISH), "start_in_barrier", "edges.[$start, a] -> $finish"),
        (SOUND.node("b", noop), "unreachable_node", "nodes.b"),
        (SOUND.node("b", noop).edge(["a", "b"], FINISH), "barrier_never_fires", "edges.[a, b] -> $finish"),
        (SOUND.node("b", noop).edge(["a", "b"], "b"), "barrier_never_fires", "edges.[a, b] -> b"),
        (SOUND.edge("a", "a"), "unbounded_cycle", "max_supersteps"),
        (SOUND.with_max_supersteps(0), "invalid_max_supersteps", "max_supersteps"),
        (SOUND.with_max_supersteps(10**5_000), "invalid_max_supersteps", "max_supersteps"),
        (SOUND.field("x", {"const": float("nan")}), "invalid_schema", "fields.x.schema"),
        (SOUND.field("9x"), "invalid_field_name", "fields.9x"),
        (SOUND.field("é"), "invalid_field_name", "fields.é"),
        (SOUND.field("x" * 129), "invalid_field_name", "fields." + "x" * 129),
        (SOUND.field("while"), "reserved_field_name", "fields.while"),
        (SOUND.field("ctx"), "reserved_field_name", "fields.ctx"),
        (SOUND.field("x", reducer="last_valeu"), "unknown_reducer", "fields.x.reducer"),
        (SOUND.field("x", str, reducer="append"), "reducer_schema_mismatch", "fields.x.schema"),
        (SOUND.field("x", int, default="1"), "default_mismatch", "fields.x.default"),
        (SOUND.field("x", reducer="merge", default=[]), "default_mismatch", "fields.x.default"),
        (SOUND.field("x", default=float("nan")), "default_refused", "fields.x.default"),
        (SOUND.field("x", default="\ud83d\ude00"), "default_refused", "fields.x.default"),
        (SOUND.output("totl"), "unknown_output", "outputs.totl"),
        (SOUND.node("b", noop, writes="totl").edge("a", "b"), "unknown_write", "nodes.b.writes"),
        (SOUND.node("b", needs, inputs={"total": "totl"}).edge("a", "b"), "unknown_input", "nodes.b.inputs.total"),
        (
            SOUND.node("b", needs, inputs={"total": ConstantInput(value=float("inf"))}).edge("a", "b"),
            "constant_refused",
            "nodes.b.inputs.total",
        ),
        (SOUND.edge("a", FINISH, when="total >"), "invalid_guard", "edges.a -> $finish {total >}.when"),
        (SOUND.edge("a", FINISH, when="totl > 1"), "guard_unknown_field", "edges.a -> $finish {totl > 1}.when"),
        (SOUND.edge("a", FINISH, when="f(total)"), "guard_unknown_function", "edges.a -> $finish {f(total)}.when"),
        (
            SOUND.field("duration").edge("a", FINISH, when="duration == 1"),
            "guard_type_name",
            "edges.a -> $finish {duration == 1}.when",
        ),
        (SOUND.node("b", noop, timeout=0).edge("a", "b"), "invalid_timeout", "nodes.b.timeout"),
        (SOUND.node("b", noop, timeout=float("nan")).edge("a", "b"), "invalid_timeout", "nodes.b.timeout"),
        (SOUND.node("b", noop, timeout=10**400).edge("a", "b"), "invalid_timeout", "nodes.b.timeout"),
        (
            SOUND.node("b", noop, retry=Retry(backoff=9, backoff_max=1)).edge("a", "b"),
            "retry_backoff_capped",
            "nodes.b.retry.backoff",
        ),
        (SOUND.node("b", noop, config={"k": float("inf")}).edge("a", "b"), "config_refused", "nodes.b.config"),
        (SOUND.node("b", noop, queue="gpu").edge("a", "b"), "detached_unsupported", "nodes.b.queue"),
        (SOUND.node("b", noop, detached=True).edge("a", "b"), "detached_unsupported", "nodes.b.detached"),
        (SOUND.node("b", noop, inputs={"x": "total"}).edge("a", "b"), "unknown_parameter", "nodes.b.inputs.x"),
        (SOUND.node("b", "m:b").edge("a", "b"), "unknown_node", "nodes.b.call"),
        (SOUND.node("b", "__main__:b").edge("a", "b"), "node_not_importable", "nodes.b.call"),
        (SOUND.node("b", "m:f.<locals>.g").edge("a", "b"), "node_not_importable", "nodes.b.call"),
        (SOUND.node("b", "m:<lambda>").edge("a", "b"), "node_not_importable", "nodes.b.call"),
    ],
)
def test_a_broken_rule_is_found_under_its_code_and_place(graph: Graph, code: str, path: str) -> None:
    assert (code, path) in found(graph)


def test_bindings_of_a_name_are_judged_when_its_callable_is_known() -> None:
    def resolve(name: str) -> Any:
        return needs

    implied = Graph("g").node("a", "m:a").edge(START, "a")
    assert [diagnostic.code for diagnostic in verify(implied, resolve)] == ["unknown_input"]
    assert verify(implied) == ()
    unbound = Graph("g").node("a", "m:a", inputs={}).edge(START, "a")
    assert [diagnostic.code for diagnostic in verify(unbound, resolve)] == ["unbound_parameter"]
    optional = Graph("g").node("a", "m:a", inputs={"total": FieldInput(field="total", optional=True)}).edge(START, "a")
    assert verify(optional, resolve) == ()
    mistyped = Graph("g").node("a", "m:a", inputs={"total": FieldInput(field="totl", optional=True)}).edge(START, "a")
    (warning,) = verify(mistyped, resolve)
    assert (warning.code, warning.severity) == ("unknown_optional_input", Severity.WARNING)


def test_a_callable_that_cannot_be_called_by_keyword_is_told() -> None:
    graph = Graph("g").node("a", "m:a").edge(START, "a")
    assert [diagnostic.code for diagnostic in verify(graph, lambda name: lambda x, /: None)] == ["node_not_callable"]


def test_a_bounded_cycle_is_sound_under_its_own_bound_or_a_given_one() -> None:
    graph = SOUND.node("b", noop).edge("a", "b").edge("b", "a")
    assert found(graph.with_max_supersteps(10)) == []
    assert found(graph, default_max_supersteps=10) == []
    (diagnostic,) = verify(graph)
    assert "a -> b -> a" in diagnostic.message


def test_a_barrier_over_branches_in_sequence_can_fire() -> None:
    graph = SOUND.node("b", noop).node("c", noop).edge("a", "b").edge(["a", "b"], "c")
    assert found(graph) == []


def test_all_problems_are_found_at_once_in_a_steady_order() -> None:
    graph = Graph("g").field("9x", reducer="no").node("b", noop, timeout=-1).edge("c", "d", when="nope").output("y")
    codes = [code for code, _ in found(graph)]
    assert codes == [
        "no_start",
        "unknown_source",
        "unknown_target",
        "guard_unknown_field",
        "invalid_field_name",
        "unknown_reducer",
        "unreachable_node",
        "invalid_timeout",
        "unknown_output",
    ]


def test_a_near_miss_is_named() -> None:
    messages = [diagnostic.message for diagnostic in verify(SOUND.output("totl").edge("a", "aa"))]
    assert all("did you mean" in message for message in messages)
    assert len(messages) == 2


def test_in_a_large_graph_a_name_is_compared_with_few_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with each, a thousand mistyped names among a thousand take a worker half a minute."""
    compared: list[int] = []
    close = difflib.get_close_matches

    def counting(word: str, possibilities: list[str], n: int) -> list[str]:
        compared.append(len(possibilities))
        return close(word, possibilities, n=n)

    monkeypatch.setattr(difflib, "get_close_matches", counting)
    large = SOUND
    for number in range(1_000):
        large = large.field(f"total_{number:04}")
    (mistyped,) = verify(large.output("total_0500_"))
    assert mistyped.message.endswith("; did you mean 'total_0500'?")
    assert sum(compared) <= 100


def test_a_barrier_of_many_is_named_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name holds all of its sources: made once for each of them, verifying four thousand took most of a second."""
    named: list[Edge] = []
    name = Edge.id.fget
    assert name is not None
    monkeypatch.setattr(Edge, "id", property(lambda edge: (named.append(edge), name(edge))[1]))
    sources = [f"n{number}" for number in range(100)]
    graph = Graph("many").node("join", noop).edge(sources, "join").edge("join", FINISH)
    for source in sources:
        graph = graph.node(source, noop).edge(START, source)
    named.clear()
    assert verify(graph) == ()
    assert sum(edge.is_barrier for edge in named) < 10


def test_values_are_bounded_in_size_when_a_bound_is_given() -> None:
    graph = (
        SOUND.field("x", default="x" * 100)
        .field("y", {"const": "y" * 100})
        .node("b", noop, config={"k": "x" * 100})
        .edge("a", "b")
    )
    assert found(graph, max_value_bytes=50) == [
        ("default_refused", "fields.x.default"),
        ("invalid_schema", "fields.y.schema"),
        ("config_refused", "nodes.b.config"),
    ]
    assert found(graph, max_value_bytes=500) == []


def test_publishing_wants_names_that_other_processes_can_find_but_not_the_code() -> None:
    graph = SOUND.node("b", "proj.tasks:b").node("c", lambda: None).edge("a", "b").edge("b", "c")
    assert [(found.code, found.path) for found in publishable(graph)] == [("node_not_importable", "nodes.c.call")]
    assert publishable(graph, lambda name: noop) == ()


def test_two_functions_of_one_name_are_told_apart_or_refused() -> None:
    @functools.wraps(noop)
    def wrapper() -> None: ...

    assert ("node_name_shared", "nodes.b.call") in found(SOUND.node("b", wrapper).edge("a", "b"))
    assert found(SOUND.node("b", noop).edge("a", "b")) == []


def test_a_warning_keeps_its_severity() -> None:
    graph = SOUND.node("b", noop, retry=Retry(backoff=9, backoff_max=1)).edge("a", "b")
    assert [diagnostic.severity for diagnostic in verify(graph)] == [Severity.WARNING]
