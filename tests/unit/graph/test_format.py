"""The published JSON Schema of the document, and published graphs that every release must load with their hashes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.documents import FULL, MALFORMED
from support.graphs import graphs, unhurried

from docket_celery import START, Graph
from docket_celery.compiler import canonical_bytes, graph_hash, publishable
from docket_celery.errors import GraphFormatError

GOLDEN = sorted(Path(__file__).with_name("golden").glob("*.json"))
VALIDATOR = jsonschema_rs.validator_for(Graph.json_schema())
BEYOND_A_SCHEMA = ("$.fields[1]", "$.fields[0].schema", "$.fields[0].default.k", "$.edges[1]")
"""Twice the same id, a schema within the document that is none, a value that is no JSON."""


def test_the_schema_is_one_itself() -> None:
    jsonschema_rs.meta.validate(Graph.json_schema())


@unhurried
@given(graphs())
def test_whatever_a_graph_writes_fits_the_schema(graph: Graph) -> None:
    VALIDATOR.validate(json.loads(json.dumps(graph.to_dict())))


def test_every_key_that_can_be_written_is_in_the_schema() -> None:
    VALIDATOR.validate(FULL.to_dict())


@pytest.mark.parametrize(("document", "path"), [case for case in MALFORMED if case[1] not in BEYOND_A_SCHEMA])
def test_a_form_that_cannot_be_read_does_not_fit_the_schema(document: Any, path: str) -> None:
    assert not VALIDATOR.is_valid(document), path


def test_what_the_schema_lets_pass_and_reading_refuses_is_what_no_schema_can_say() -> None:
    passing = [path for document, path in MALFORMED if path in BEYOND_A_SCHEMA and _is_json(document)]
    assert len(passing) == len(BEYOND_A_SCHEMA) - 1


def test_a_key_unknown_to_the_schema_is_unknown_to_the_reader() -> None:
    document = Graph("g").node("a", "m:a").edge(START, "a").to_dict()
    document["nodes"][0]["colour"] = "red"
    assert not VALIDATOR.is_valid(document)
    with pytest.raises(GraphFormatError, match="colour"):
        Graph.from_dict(document)


def _places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every place of a document below which the form is the document's, not a value's or a schema's own."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        if key not in ("schema", "default", "constant", "config"):
            yield from _places(item, (*path, key))


def _with(place: tuple[str | int, ...], value: Any) -> Any:
    document: Any = FULL.to_dict()
    inner = document
    for key in place[:-1]:
        inner = inner[key]
    if value is ABSENT:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return document


def _refusal(document: Any) -> str:
    try:
        Graph.from_dict(document)
    except GraphFormatError as error:
        return str(error)
    return ""


ABSENT = object()
_OTHERS = st.sampled_from([ABSENT, None, True, -1, 0, 3, 0.5, "", "x", [], ["x"], ["x", "x"], [1], {}, {"x": 1}])


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(sorted(_places(FULL.to_dict()), key=repr)), _OTHERS)
def test_the_schema_and_the_reader_refuse_the_same(place: tuple[str | int, ...], value: Any) -> None:
    document = _with(place, value)
    refusal = _refusal(document)
    if "is there twice" not in refusal:
        assert VALIDATOR.is_valid(document) is (refusal == ""), refusal


def test_the_copy_is_the_callers_own() -> None:
    Graph.json_schema()["properties"].clear()
    assert Graph.json_schema()["properties"]


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_published_graph_loads_keeps_its_hash_and_can_still_be_published(path: Path) -> None:
    golden = json.loads(path.read_text(encoding="utf-8"))
    graph = Graph.from_dict(golden["document"])
    assert graph_hash(graph) == golden["hash"]
    assert json.loads(canonical_bytes(graph)) == golden["document"]
    assert publishable(graph) == ()
    VALIDATOR.validate(golden["document"])


def test_there_are_published_graphs_to_load() -> None:
    assert [path.stem for path in GOLDEN] == ["agent_loop", "everything", "review_quorum"]


def _is_json(document: Any) -> bool:
    try:
        json.dumps(document)
    except TypeError:
        return False
    return True
