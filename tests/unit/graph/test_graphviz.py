"""A graph as Graphviz text, and drawn where Graphviz is; a stand-in for its program prints what it is given."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from docket_celery import FINISH, START, Graph
from docket_celery.errors import PictureUnavailable

GRAPH = (
    Graph('the "order"')
    .field("note", str)
    .node("b", "proj:b")
    .node("a", "proj:a")
    .node("c", "proj:c")
    .edge(START, "a")
    .edge(START, "b", when='note == "x\\n"')
    .edge(["b", "a"], "c", when="note != ''")
    .edge("c", FINISH)
)


def test_the_text_shows_nodes_guards_and_barriers() -> None:
    assert GRAPH.to_dot().splitlines() == [
        'digraph "the \\"order\\"" {',
        "    node [shape=box, style=rounded];",
        "    start [shape=circle];",
        "    finish [shape=doublecircle];",
        '    n0 [label="a"];',
        '    n1 [label="b"];',
        '    n2 [label="c"];',
        "    start -> n0;",
        '    start -> n1 [label="note == \\"x\\\\n\\""];',
        '    join0 [label="all of", shape=hexagon];',
        "    n0 -> join0;",
        "    n1 -> join0;",
        "    join0 -> n2 [label=\"note != ''\"];",
        "    n2 -> finish;",
        "}",
    ]


def test_equal_graphs_give_equal_text() -> None:
    assert Graph.from_dict(GRAPH.to_dict()).to_dot() == GRAPH.to_dot()


def _program(directory: Path, script: str) -> str:
    program = directory / "dot"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return f"{directory}{os.pathsep}{os.environ['PATH']}"


def test_the_svg_is_what_dot_draws_of_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", _program(tmp_path, 'echo "$1"; cat'))
    assert GRAPH.to_svg() == "-Tsvg\n" + GRAPH.to_dot()


def test_without_graphviz_the_error_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PictureUnavailable, match="no program 'dot' on PATH: install graphviz"):
        GRAPH.to_svg()


def test_what_dot_complains_about_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", _program(tmp_path, "cat > /dev/null; echo 'too wild' >&2; exit 3"))
    with pytest.raises(PictureUnavailable, match="status 3: too wild"):
        GRAPH.to_svg()
