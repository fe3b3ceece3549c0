"""The document's wire form."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from support.documents import FULL, MALFORMED
from support.graphs import graphs, unhurried

from docket_celery.errors import GraphFormatError
from docket_celery.graph.document import Graph
from docket_celery.graph.elements import START


def test_the_form_is_minimal_and_versioned() -> None:
    assert Graph("g").node("a", "m:a").field("x").edge(START, "a").to_dict() == {
        "version": 1,
        "id": "g",
        "fields": [{"name": "x"}],
        "nodes": [{"id": "a", "call": "m:a"}],
        "edges": [{"from": "$start", "to": "a"}],
        "outputs": [],
    }


def test_every_part_is_written_and_read_back() -> None:
    document = FULL.to_dict()
    assert document["nodes"][1] == {
        "id": "b",
        "call": "m:b",
        "inputs": {
            "x": {"field": "log", "path": [0, "k"], "optional": True},
            "y": {"constant": None},
            "z": {"field": "anything"},
        },
        "writes": "log",
        "retry": {"max_attempts": 2, "backoff": 1.0, "factor": 2.0, "backoff_max": 3600.0, "jitter": 0.2},
        "timeout": 5.0,
        "config": {"k": [1, 1.0, None]},
        "queue": "gpu",
        "detached": True,
    }
    assert document["edges"][1] == {"from": ["a", "b"], "to": "$finish", "when": "anything == null"}
    assert Graph.from_dict(json.loads(json.dumps(document))) == FULL


@unhurried
@given(graphs())
def test_any_graph_survives_a_round_trip_through_json(graph: Graph) -> None:
    assert Graph.from_dict(json.loads(json.dumps(graph.to_dict()))) == graph


def test_the_written_form_shares_nothing_with_the_graph() -> None:
    document = FULL.to_dict()
    document["nodes"][1]["config"]["k"].append("changed")
    document["fields"][1]["schema"]["type"] = "changed"
    assert FULL.to_dict() != document


@pytest.mark.parametrize(("document", "path"), MALFORMED)
def test_a_malformed_document_is_refused_with_its_path(document: Any, path: str) -> None:
    with pytest.raises(GraphFormatError) as raised:
        Graph.from_dict(document)
    assert path in str(raised.value)
