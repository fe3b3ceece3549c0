"""A graph as Graphviz text, and as SVG where Graphviz is installed.

`svg` is the only function of this package that runs a program; nothing but an explicit call for a picture comes here.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from docket_celery.errors import PictureUnavailable
from docket_celery.graph.elements import FINISH, START

if TYPE_CHECKING:
    from docket_celery.graph.document import Graph

LONGEST_DRAWING: Final = 60.0
"""Seconds that `dot` is given; a graph of thousands of nodes may take longer than anybody would look at it."""


def dot(graph: Graph) -> str:
    """The graph in Graphviz's language: guards on the edges, barriers as joins. Equal graphs give equal text."""
    names = {START: "start", FINISH: "finish"} | {node: f"n{number}" for number, node in enumerate(sorted(graph.nodes))}
    body = [
        f"    {line}" for line in ("node [shape=box, style=rounded];", *_shapes(graph, names), *_arrows(graph, names))
    ]
    return "\n".join([f"digraph {_quoted(graph.id)} {{", *body, "}"]) + "\n"


def svg(text: str) -> str:
    """The picture of such text; `PictureUnavailable` when `dot` is missing, refuses, or takes too long."""
    try:
        drawn = subprocess.run(
            ["dot", "-Tsvg"], input=text, capture_output=True, encoding="utf-8", timeout=LONGEST_DRAWING, check=True
        )
    except FileNotFoundError as error:
        raise PictureUnavailable(
            "an SVG needs Graphviz, and there is no program 'dot' on PATH: install graphviz, or use to_mermaid()"
        ) from error
    except subprocess.CalledProcessError as error:
        raise PictureUnavailable(f"dot ended with status {error.returncode}: {error.stderr.strip():.300}") from error
    except subprocess.TimeoutExpired as error:
        raise PictureUnavailable(f"dot did not draw the graph within {LONGEST_DRAWING:g} s") from error
    return drawn.stdout


def _shapes(graph: Graph, names: Mapping[str, str]) -> Iterator[str]:
    yield "start [shape=circle];"
    if any(edge.target == FINISH for edge in graph.edges.values()):
        yield "finish [shape=doublecircle];"
    for node in sorted(graph.nodes):
        yield f"{names[node]} [label={_quoted(node)}];"


def _arrows(graph: Graph, names: Mapping[str, str]) -> Iterator[str]:
    barriers = 0
    for edge in sorted(graph.edges.values(), key=lambda edge: edge.id):
        source = names[edge.sources[0]]
        if edge.is_barrier:
            source = f"join{barriers}"
            barriers += 1
            yield f'{source} [label="all of", shape=hexagon];'
            yield from (f"{names[one]} -> {source};" for one in sorted(edge.sources))
        label = "" if edge.when is None else f" [label={_quoted(edge.when)}]"
        yield f"{source} -> {names[edge.target]}{label};"


def _quoted(text: str) -> str:
    """A quoted string of Graphviz's, in which a backslash would otherwise begin an escape."""
    shown = " ".join(text.replace("\x00", " ").split()).encode("utf-8", "backslashreplace").decode("utf-8")
    return '"' + shown.replace("\\", "\\\\").replace('"', '\\"') + '"'
