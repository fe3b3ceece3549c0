"""The canonical form and the content hash."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.graphs import built, edits, unhurried

from docket_celery.compiler import canonical, canonical_bytes, graph_hash
from docket_celery.graph.document import Graph
from docket_celery.graph.elements import FINISH, START, ConstantInput, Retry


@unhurried
@given(edits(), st.randoms(use_true_random=False))
def test_the_order_of_authoring_does_not_change_the_hash(parts: list[Any], random: Any) -> None:
    shuffled = list(parts)
    random.shuffle(shuffled)
    one, other = built(parts), built(shuffled)
    assert canonical_bytes(one) == canonical_bytes(other)
    assert graph_hash(one) == graph_hash(other)


@unhurried
@given(edits())
def test_the_canonical_form_reads_back_as_the_same_graph(parts: list[Any]) -> None:
    graph = built(parts)
    again = Graph.from_dict(canonical(graph))
    assert graph_hash(again) == graph_hash(graph)
    assert sorted(again.outputs) == sorted(graph.outputs)
    assert (again.fields, again.nodes, again.edges) == (graph.fields, graph.nodes, graph.edges)


def test_the_hash_is_known_and_must_not_change_between_releases() -> None:
    graph = Graph("g").field("x", int).node("a", "m:a", retry=Retry()).edge(START, "a").edge("a", FINISH, when="x > 1")
    assert canonical_bytes(graph) == (
        b'{"version":1,"id":"g","fields":[{"name":"x","schema":{"type":"integer"}}],"nodes":[{"id":"a","call":"m:a",'
        b'"retry":{"max_attempts":3,"backoff":1.0,"factor":2.0,"backoff_max":3600.0,"jitter":0.2}}],"edges":['
        b'{"from":"$start","to":"a"},{"from":"a","to":"$finish","when":"x > 1"}],"outputs":[]}'
    )
    assert graph_hash(graph) == "abc9b4820dc3a939954913a38c37f89ad5bc0bebabb3a55c8d0f5f9ff6bb8545"


def test_everything_that_means_something_changes_the_hash() -> None:
    base = (
        Graph("g").field("x", default={"a": 1, "b": 2}).node("a", "m:a", inputs={"p": "x"}).edge(START, "a").output("x")
    )
    variants = [
        base,
        Graph.from_dict({**base.to_dict(), "id": "h"}),
        base.with_max_supersteps(3),
        base.field("y"),
        base.node("b", "m:b"),
        base.edge("a", FINISH),
        base.edge(["a"], FINISH),
        base.edge("a", FINISH, when="x == 1"),
        base.node("b", "m:b", config={"k": 1}),
        base.node("b", "m:b", config={"k": 1.0}),
        base.node("b", "m:b", config={"k": True}),
        base.node("b", "m:b", inputs={}),
        base.node("b", "m:b", inputs={"p": ConstantInput(value=None)}),
        base.field("y", default=None),
        base.field("y", default={"a": 1, "b": 2}),
        base.field("y", default={"b": 2, "a": 1}),
    ]
    assert len({graph_hash(variant) for variant in variants}) == len(variants)


def test_the_order_of_a_schemas_keys_does_not_change_the_hash() -> None:
    one = Graph("g").field("x", {"type": "string", "minLength": 1})
    other = Graph("g").field("x", {"minLength": 1, "type": "string"})
    assert graph_hash(one) == graph_hash(other)


def test_text_of_every_kind_can_be_hashed() -> None:
    assert len(graph_hash(Graph("g").field("x", default="\ud800\x00é"))) == 64
