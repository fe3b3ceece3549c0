"""The one form of a graph that its hash is taken of: the same for every order of authoring.

Fields, nodes, edges, outputs, bindings and the keys of schemas are sorted. Values (defaults, constants, configuration)
keep the order of their keys, since a committed value does.
"""

from __future__ import annotations

import hashlib
from typing import Any

from docket_celery.graph.document import Graph
from docket_celery.graph.serializer import edge_to_dict
from docket_celery.run.values import encode


def canonical(graph: Graph) -> dict[str, Any]:
    """The document as `Graph.to_dict` writes it, in canonical order. `Graph.from_dict` reads it."""
    document = graph.to_dict()
    document["fields"].sort(key=lambda field: field["name"])
    document["nodes"].sort(key=lambda node: node["id"])
    document["edges"] = [edge_to_dict(graph.edges[id]) for id in sorted(graph.edges)]
    document["outputs"].sort()
    for field in document["fields"]:
        if "schema" in field:
            field["schema"] = _sorted(field["schema"])
    for node in document["nodes"]:
        if "inputs" in node:
            node["inputs"] = dict(sorted(node["inputs"].items()))
    return document


def canonical_bytes(graph: Graph) -> bytes:
    """The canonical form as compact ASCII JSON."""
    return encode(canonical(graph)).encode("ascii")


def graph_hash(graph: Graph) -> str:
    """SHA-256 of the canonical bytes, in 64 hexadecimal digits."""
    return hashlib.sha256(canonical_bytes(graph)).hexdigest()


def _sorted(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {key: _sorted(schema[key]) for key in sorted(schema)}
    if isinstance(schema, list):
        return [_sorted(item) for item in schema]
    return schema
