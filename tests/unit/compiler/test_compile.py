"""From a sound document to the program the runtime reads."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from docket_celery.compiler import compile, graph_hash, local_resolver, verify
from docket_celery.errors import InvalidGraph
from docket_celery.graph.document import Graph
from docket_celery.graph.elements import FINISH, START, ConstantInput, FieldInput, Retry


def first(at: datetime, ctx: Any, discount: float = 0.0) -> None: ...


async def second() -> None: ...


GRAPH = (
    Graph("g")
    .input("at", datetime)
    .field("log", list[str], reducer="append")
    .field("kept", default=(1, 2))
    .node("b", second, retry=Retry(max_attempts=2), timeout=5, config={"k": 1}, writes="log")
    .node("a", first)
    .edge("b", FINISH)
    .edge(["b", "a"], FINISH)
    .edge("a", "b", when="size(log) == 0")
    .edge(START, "a")
    .output("log", "at")
)


def test_everything_is_in_sorted_order() -> None:
    program = compile(GRAPH, local_resolver(GRAPH))
    assert list(program.fields) == ["at", "kept", "log"]
    assert list(program.nodes) == ["a", "b"]
    assert program.outputs == ("at", "log")
    assert {source: [edge.id for edge in edges] for source, edges in program.outgoing.items()} == {
        "$start": ["$start -> a"],
        "a": ["[a, b] -> $finish", "a -> b {size(log) == 0}"],
        "b": ["[a, b] -> $finish", "b -> $finish"],
    }
    assert (program.graph_id, program.graph_hash) == ("g", graph_hash(GRAPH))


def test_nodes_carry_their_callables_and_bindings() -> None:
    program = compile(GRAPH, local_resolver(GRAPH))
    a, b = program.nodes["a"], program.nodes["b"]
    assert (a.call, a.wants_context, a.is_async) == (first, True, False)
    assert (b.call, b.wants_context, b.is_async) == (second, False, True)
    (at,) = a.parameters
    assert (at.name, at.source) == ("at", FieldInput(field="at"))
    assert at.revive is not None
    assert at.revive("2024-02-29T00:00:00Z").year == 2024
    assert (b.retry, b.timeout, b.config, b.writes) == (Retry(max_attempts=2), 5.0, {"k": 1}, "log")


def test_fields_start_with_their_default_or_their_reducers_zero() -> None:
    fields = compile(GRAPH).fields
    assert [(name, field.has_initial, field.initial) for name, field in fields.items()] == [
        ("at", False, None),
        ("kept", True, [1, 2]),
        ("log", True, []),
    ]
    assert fields["at"].is_input
    assert fields["at"].schema.problem("soon") is not None


def test_without_a_resolver_it_is_a_plan_that_knows_everything_but_the_code() -> None:
    graph = Graph.from_dict(GRAPH.to_dict())
    plan = compile(graph)
    assert [node.call for node in plan.nodes.values()] == [None, None]
    assert plan.graph_hash == graph_hash(GRAPH)
    (guarded,) = (edge for edge in plan.outgoing["a"] if edge.guard is not None)
    assert guarded.guard is not None
    assert guarded.guard.holds({"log": []})


def test_a_stored_document_compiles_to_the_same_program_as_the_authored_one() -> None:
    resolver = local_resolver(GRAPH)
    stored = Graph.from_dict(GRAPH.to_dict())
    assert compile(stored).outgoing == compile(GRAPH).outgoing
    assert compile(stored, resolver).nodes["b"] == compile(GRAPH, resolver).nodes["b"]


def test_functions_made_in_one_place_stay_apart() -> None:
    def made(answer: int) -> Any:
        def node() -> int:
            return answer

        return node

    graph = Graph("g").node("one", made(1)).node("two", made(2)).edge(START, "one").edge(START, "two")
    program = compile(graph, local_resolver(graph))
    assert [node.call() for node in program.nodes.values() if node.call is not None] == [1, 2]


def test_an_invalid_graph_raises_with_every_error() -> None:
    broken = GRAPH.field("9x").edge("a", "nowhere").node("c", first, inputs={"at": ConstantInput(value=1)})
    with pytest.raises(InvalidGraph) as raised:
        compile(broken)
    assert [found.code for found in raised.value.diagnostics] == [
        "unknown_target",
        "invalid_field_name",
        "unreachable_node",
    ]


def test_warnings_do_not_keep_a_graph_from_compiling() -> None:
    graph = GRAPH.node("c", second, retry=Retry(backoff=9, backoff_max=1)).edge("a", "c")
    assert len(verify(graph)) == 1
    assert "c" in compile(graph).nodes


@pytest.mark.parametrize("closed", [False, True])
def test_a_very_long_line_compiles(closed: bool) -> None:
    count = 20_000
    edges = [{"from": START, "to": "n0"}, *({"from": f"n{i}", "to": f"n{i + 1}"} for i in range(count - 1))]
    if closed:
        edges.append({"from": f"n{count - 1}", "to": "n0"})
    document = {
        "version": 1,
        "id": "line",
        "edges": edges,
        "nodes": [{"id": f"n{i}", "call": "m:n"} for i in range(count)],
    }
    graph = Graph.from_dict(document)
    if closed:
        assert [found.code for found in verify(graph)] == ["unbounded_cycle"]
        assert len(str(verify(graph)[0])) < 500
    else:
        assert len(compile(graph, lambda name: second).nodes) == count
