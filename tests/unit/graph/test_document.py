"""The graph document's edits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from docket_celery.errors import GraphFormatError
from docket_celery.graph.document import Graph
from docket_celery.graph.elements import FINISH, NO_RETRY, START, ConstantInput, FieldInput, Retry


def price(order_id: str, discount: float = 0.0, *, ctx: Any = None) -> dict[str, Any]:
    return {"total": 1.0}


def test_every_edit_returns_a_new_graph_and_leaves_the_old_one_alone() -> None:
    empty = Graph("order")
    filled = (
        empty.input("order_id", str)
        .field("total", float)
        .node("price", price)
        .edge(START, "price")
        .output("total")
        .with_max_supersteps(5)
    )
    assert empty == Graph("order")
    assert (list(filled.fields), list(filled.nodes), filled.outputs) == (["order_id", "total"], ["price"], ("total",))
    assert filled.max_supersteps == 5


def test_a_graph_cannot_be_changed_through_its_mappings_or_the_objects_it_was_given() -> None:
    default, config = [1], {"k": [1]}
    graph = Graph("g").field("log", list, default=default).node("a", "mod:a", config=config)
    default.append(2)
    config["k"].append(2)
    assert graph.fields["log"].default == [1]
    assert graph.nodes["a"].config == {"k": [1]}
    with pytest.raises(TypeError):
        graph.nodes["b"] = graph.nodes["a"]  # type: ignore[index]


def test_a_function_is_called_by_module_and_qualname_and_bound_by_its_parameters() -> None:
    node = Graph("g").node("price", price).nodes["price"]
    assert node.call == f"{__name__}:price"
    assert node.inputs == {
        "order_id": FieldInput(field="order_id"),
        "discount": FieldInput(field="discount", optional=True),
    }
    assert node.function is price
    assert node.retry == NO_RETRY


def test_given_inputs_rebind_single_parameters_of_a_function() -> None:
    node = (
        Graph("g").node("price", price, inputs={"order_id": "id", "discount": ConstantInput(value=(1,))}).nodes["price"]
    )
    assert node.inputs == {"order_id": FieldInput(field="id"), "discount": ConstantInput(value=[1])}


def test_a_rebound_parameter_with_a_default_stays_optional() -> None:
    node = Graph("g").node("price", price, inputs={"discount": "rebate"}).nodes["price"]
    assert node.inputs is not None
    assert node.inputs["discount"] == FieldInput(field="rebate", optional=True)


def test_a_name_has_no_inputs_of_its_own() -> None:
    graph = (
        Graph("g").node("a", "proj.tasks.charge").node("b", "mod:b", inputs={"x": FieldInput(field="y", path=("k", 0))})
    )
    assert graph.nodes["a"].inputs is None
    assert graph.nodes["b"].inputs == {"x": FieldInput(field="y", path=("k", 0))}


def test_a_celery_task_is_called_by_its_own_name_and_bound_through_run() -> None:
    task = SimpleNamespace(name="proj.tasks.charge", run=lambda receipt, tip=0: None)
    node = Graph("g").node("charge", task).nodes["charge"]  # type: ignore[arg-type]
    assert node.call == "proj.tasks.charge"
    assert node.inputs == {"receipt": FieldInput(field="receipt"), "tip": FieldInput(field="tip", optional=True)}


def test_a_list_as_source_is_a_barrier_even_of_one() -> None:
    graph = Graph("g").edge(["b", "a"], "join").edge(["a"], "join").edge("a", "join")
    assert list(graph.edges) == ["[a, b] -> join", "[a] -> join", "a -> join"]
    assert [edge.is_barrier for edge in graph.edges.values()] == [True, True, False]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda: Graph(""), "the graph's id"),
        (lambda: Graph("g", max_supersteps=True), "max_supersteps"),
        (lambda: Graph("g").field("a").input("a", str), "fields.a"),
        (lambda: Graph("g").field("a", "string"), "fields.a.schema"),
        (lambda: Graph("g").field("a", {"type": "strin"}), "fields.a.schema"),
        (lambda: Graph("g").field("a", default={1: 2}), "fields.a.default"),
        (lambda: Graph("g").field("a", default={"k": [b"x"]}), r"fields.a.default.k\[0\]"),
        (lambda: Graph("g").node("a", "m:a").node("a", "m:b"), "nodes.a"),
        (lambda: Graph("g").node("a", ""), "nodes.a.call"),
        (lambda: Graph("g").node("a", 5), "nodes.a.call"),  # type: ignore[arg-type]
        (lambda: Graph("g").node("a", [].append), "nodes.a.call"),
        (lambda: Graph("g").node("a", "m:a", timeout=True), "nodes.a.timeout"),
        (lambda: Graph("g").node("a", "m:a", retry=3), "nodes.a.retry"),  # type: ignore[arg-type]
        (lambda: Graph("g").node("a", "m:a", inputs={"ctx": "x"}), "nodes.a.inputs.ctx"),
        (lambda: Graph("g").node("a", "m:a", inputs={"x": 5}), "nodes.a.inputs.x"),  # type: ignore[dict-item]
        (lambda: Graph("g").node("a", "m:a", config=[1]), "nodes.a.config"),  # type: ignore[arg-type]
        (lambda: Graph("g").edge("a", "b").edge("a", "b"), "a -> b"),
        (lambda: Graph("g").edge("a", "b", when="x").edge("a", "b", when="x"), "{x}"),
        (lambda: Graph("g").edge([], "b"), "a barrier needs sources"),
        (lambda: Graph("g").edge(["a", "a"], "b"), "a barrier needs sources"),
        (lambda: Graph("g").edge("a", "b", when=True), "when"),  # type: ignore[arg-type]
        (lambda: Graph("g").output("a", "a"), "outputs"),
    ],
)
def test_an_edit_without_meaning_is_refused_at_once(edit: Any, message: str) -> None:
    with pytest.raises(GraphFormatError, match=message):
        edit()


def test_edges_that_differ_in_their_guard_may_share_their_ends() -> None:
    graph = Graph("g").edge("a", FINISH, when="x").edge("a", FINISH, when="!x").edge("a", FINISH)
    assert len(graph.edges) == 3


def test_a_timeout_is_the_same_whether_written_whole_or_not() -> None:
    assert Graph("g").node("a", "m:a", timeout=5) == Graph("g").node(
        "a", "m:a", timeout=5.0, retry=Retry(max_attempts=1)
    )
