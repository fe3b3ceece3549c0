"""Hypothesis strategies for JSON values and for graph documents, sound or not."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from docket_celery.graph.document import Graph
from docket_celery.graph.elements import FINISH, START, ConstantInput, FieldInput, Retry

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""For properties whose examples are costly to draw on a busy machine."""

names = st.text("abcdefgh_", min_size=1, max_size=6)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
_guards = st.none() | st.sampled_from(["a > 1", "!b", "size(c) == 0"])
_retries = st.none() | st.builds(Retry, max_attempts=st.integers(1, 9), backoff=st.floats(0, 100))
_bindings = st.none() | st.dictionaries(
    names,
    names | st.builds(ConstantInput, value=json_values) | st.builds(FieldInput, field=names, optional=st.booleans()),
)
_schemas = st.sampled_from([Any, str, list[int], {"type": "object", "properties": {"b": {}, "a": {"type": "null"}}}])


@st.composite
def edits(draw: st.DrawFn) -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """Edits of one graph, whose order means nothing: method, arguments, keywords."""
    fields = draw(st.lists(names, unique=True, max_size=4))
    nodes = draw(st.lists(names, unique=True, max_size=4))
    made: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        (
            "field",
            (name, draw(_schemas)),
            {"default": draw(json_values), "reducer": draw(st.sampled_from(["append", "sum"]))},
        )
        for name in fields
    ]
    for id in nodes:
        keywords = {
            "inputs": draw(_bindings),
            "retry": draw(_retries),
            "config": draw(st.dictionaries(names, json_values)),
        }
        made.append(("node", (id, f"module:{id}"), keywords))
    ends = st.sampled_from([*nodes, FINISH])
    sources = st.sampled_from([START, *nodes])
    drawn = draw(st.lists(st.tuples(sources | st.sets(sources, min_size=1).map(sorted), ends, _guards), max_size=6))
    edges = {(str(source), target, guard): (source, target, guard) for source, target, guard in drawn}
    made += [("edge", (source, target), {"when": guard}) for source, target, guard in edges.values()]
    made += [("output", (name,), {}) for name in fields]
    return made


def built(parts: list[tuple[str, tuple[Any, ...], dict[str, Any]]]) -> Graph:
    """The graph of these edits in this order."""
    graph = Graph("drawn")
    for method, arguments, keywords in parts:
        graph = getattr(graph, method)(*arguments, **keywords)
    return graph


def graphs() -> st.SearchStrategy[Graph]:
    """Documents that can be authored; few of them would verify."""
    return edits().map(built)
