"""Deeply nested values, wherever they enter: kept up to one depth, refused beyond it by field, never a broken stack."""

from __future__ import annotations

from typing import Any

import pytest

from docket_celery import FINISH, START, Graph, Interrupt, Retry, RunStatus
from docket_celery.compiler import verify
from docket_celery.errors import DocketError, GraphFormatError, InvalidGraph, InvalidInput
from docket_celery.graph.elements import ConstantInput
from docket_celery.graph.plain import MAX_DEPTH
from docket_celery.testing import run_inline, run_with_crashes

TOO_DEEP = [MAX_DEPTH + 1, 900, 1_000, 10_000]


def nested(depth: int, kind: type = list) -> Any:
    value: Any = kind()
    for _ in range(depth - 1):
        value = [value] if kind is list else {"k": value}
    return value


def around_itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def writes(value: Any, **field: Any) -> Graph:
    graph = Graph("g").field("x", **field).node("a", lambda: {"x": value}, retry=Retry(max_attempts=3))
    return graph.edge(START, "a").edge("a", FINISH)


@pytest.mark.parametrize("kind", [list, dict])
@pytest.mark.parametrize("depth", [50, 100, MAX_DEPTH])
def test_a_value_up_to_the_stated_depth_is_kept_and_survives_every_crash(depth: int, kind: type) -> None:
    value = nested(depth, kind)
    assert repr(run_with_crashes(writes(value)).fields["x"]) == repr(value)


@pytest.mark.parametrize("value", [*map(nested, TOO_DEEP), nested(10_000, dict), around_itself()])
def test_a_deeper_value_is_the_nodes_permanent_failure_that_names_the_field(value: Any) -> None:
    result = run_inline(writes(value))
    assert result.status is RunStatus.FAILED
    failure = result.run.failure
    assert failure is not None
    assert (failure.code, failure.node) == ("value_refused", "a")
    assert failure.message.startswith("$.x")
    assert [event.data["attempt"] for event in result.events if event.type == "node_failed"] == [1]


def test_objects_are_merged_by_their_outer_keys_and_nothing_grows_deeper() -> None:
    deepest = nested(MAX_DEPTH, dict)
    graph = writes(deepest, reducer="merge").node("b", lambda: {"x": deepest}).edge(START, "b")
    assert run_with_crashes(graph).fields["x"] == deepest
    refused = run_inline(writes(nested(900, dict), reducer="merge"))
    assert refused.run.failure is not None
    assert refused.run.failure.code == "value_refused"


@pytest.mark.parametrize("depth", TOO_DEEP)
def test_a_question_too_deep_is_the_nodes_failure_and_an_answer_too_deep_is_refused(depth: int) -> None:
    def asks(question: Any) -> Graph:
        return Graph("g").field("x").node("a", lambda: question()).edge(START, "a")

    for question in (
        lambda: Interrupt("x", payload=nested(depth)),
        lambda: Interrupt("x", timeout=1, default=nested(depth)),
        lambda: Interrupt("x", schema={"const": nested(depth)}),
    ):
        failure = run_inline(asks(question)).run.failure
        assert failure is not None
        assert failure.code in ("value_refused", "bad_interrupt")
    with pytest.raises(InvalidInput, match="field 'x'"):
        run_inline(asks(lambda: Interrupt("x")), resolve={"x": nested(depth)})


@pytest.mark.parametrize("depth", TOO_DEEP)
def test_a_graph_or_an_input_too_deep_is_refused_with_an_error_of_our_own(depth: int) -> None:
    value = nested(depth)
    graph = Graph("g").input("x", list[Any]).node("a", "m:a").edge(START, "a")
    with pytest.raises(InvalidInput, match="'x'"):
        run_inline(graph, {"x": value}, stubs={"a": None})
    for edit in (
        lambda: graph.field("y", default=value),
        lambda: graph.field("y", {"const": value}),
        lambda: graph.node("b", "m:b", config={"k": value}),
        lambda: graph.node("b", "m:b", inputs={"k": ConstantInput(value=value)}),
        lambda: Graph.from_dict({"version": 1, "id": "g", "fields": [{"name": "y", "default": value}]}),
    ):
        with pytest.raises(DocketError) as raised:
            verify(edit())
        assert isinstance(raised.value, GraphFormatError | InvalidGraph)


@pytest.mark.parametrize("depth", [33, 1_000, 5_000])
def test_a_guard_too_deep_is_found_when_the_graph_is_verified(depth: int) -> None:
    graph = Graph("g").field("x", bool).node("a", "m:a").edge(START, "a")
    deep = graph.edge("a", FINISH, when="(" * depth + "x" + ")" * depth)
    assert [found.code for found in verify(deep)] == ["invalid_guard"]
