"""A graph as a picture: Mermaid text, with guards on the edges and barriers drawn as joins. Reads the document only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from docket_celery.graph.elements import FINISH, START, Edge

if TYPE_CHECKING:
    from docket_celery.graph.document import Graph

_ENTITIES = str.maketrans(
    {"&": "&amp;", '"': "&quot;", "<": "&lt;", ">": "&gt;", "#": "&num;", "`": "&grave;", "\n": " ", "\r": " "}
)


def mermaid(graph: Graph) -> str:
    """The graph as a Mermaid flowchart, top down; equal graphs give equal text."""
    names = {START: "start", FINISH: "finish"} | {node: f"n{number}" for number, node in enumerate(sorted(graph.nodes))}
    return "\n".join(["flowchart TD", *_shapes(graph, names), *_arrows(graph, names)]) + "\n"


def _shapes(graph: Graph, names: dict[str, str]) -> Iterator[str]:
    yield '    start(("start"))'
    if any(edge.target == FINISH for edge in graph.edges.values()):
        yield '    finish(("finish"))'
    for node in sorted(graph.nodes):
        yield f'    {names[node]}["{_text(node)}"]'


def _arrows(graph: Graph, names: dict[str, str]) -> Iterator[str]:
    barriers = 0
    for edge in sorted(graph.edges.values(), key=lambda edge: edge.id):
        if not edge.is_barrier:
            yield _arrow(names[edge.sources[0]], edge, names)
            continue
        join = f"join{barriers}"
        barriers += 1
        yield f'    {join}{{{{"all of {_text(", ".join(sorted(edge.sources)))}"}}}}'
        yield from (f"    {names[source]} --> {join}" for source in sorted(edge.sources))
        yield _arrow(join, edge, names)


def _arrow(source: str, edge: Edge, names: dict[str, str]) -> str:
    label = "" if edge.when is None else f'|"{_text(edge.when)}"|'
    return f"    {source} -->{label} {names[edge.target]}"


def _text(text: str) -> str:
    return text.translate(_ENTITIES)
