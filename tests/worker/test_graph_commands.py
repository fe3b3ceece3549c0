"""`docket graphs show` and `docket graphs verify`: a graph in a terminal, and a file before it is published."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.apps import a_docket, a_graph

from docket_celery import FINISH, START, Docket, Graph, Retry
from docket_celery.compiler import graph_hash
from docket_celery.worker.commands import docket as group

NOWHERE = "postgresql://127.0.0.1:1/nowhere"
"""Refuses to be connected to."""


def _call(docket: Docket, *arguments: str, **given: Any) -> Result:
    app = SimpleNamespace(app=docket.app)
    return CliRunner().invoke(group, list(arguments), obj=app, env={"COLUMNS": "200"}, **given)


def a_fork(version: int = 1) -> Graph:
    return (
        Graph("fork")
        .input("name", str)
        .field("greeting", str, default=f"version {version}")
        .node("left", "tests.greet", retry=Retry(max_attempts=4), timeout=2.5)
        .node("right", "tests.greet")
        .node("join", "tests.greet", inputs={"name": "greeting"})
        .edge(START, "left")
        .edge(START, "right")
        .edge(["left", "right"], "join", when='name != "[red]nobody[/red]"')
        .edge("join", FINISH)
        .output("greeting")
    )


@pytest.fixture
def published(docket: Docket) -> Graph:
    docket.save_graph(a_fork())
    return a_fork()


def test_show_prints_edges_with_guards_and_barriers_nodes_and_fields(docket: Docket, published: Graph) -> None:
    shown = _call(docket, "graphs", "show", "fork")
    assert shown.exit_code == 0, shown.output
    assert graph_hash(published) in shown.output
    for line in (
        ("all of left, right", "join", 'name != "[red]nobody[/red]"'),
        ("left", "tests.greet", "4 attempts, 2.5 s"),
    ):
        assert any(all(part in row for part in line) for row in shown.output.splitlines()), line
    assert "output" in shown.output


def test_show_takes_a_version_and_other_forms(docket: Docket, published: Graph) -> None:
    later = docket.save_graph(a_fork(2))
    assert later.graph_hash in _call(docket, "graphs", "show", "fork").output
    older = _call(docket, "graphs", "show", "fork", "--hash", graph_hash(published), "--json")
    assert Graph.from_dict(json.loads(older.output)) == published
    assert _call(docket, "graphs", "show", "fork", "--mermaid").output == published.to_mermaid() + "\n"
    assert _call(docket, "graphs", "show", "fork", "--dot").output == published.to_dot() + "\n"


def test_show_of_what_is_not_published_says_so(docket: Docket) -> None:
    missing = _call(docket, "graphs", "show", "nowhere")
    assert missing.exit_code == 1
    assert "nowhere" in missing.output


def _file(directory: Path, document: Any) -> str:
    path = directory / "graph.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return str(path)


def test_verify_of_a_sound_file_says_so_without_connecting(tmp_path: Path) -> None:
    checked = _call(a_docket(NOWHERE), "graphs", "verify", _file(tmp_path, a_fork().to_dict()))
    assert checked.exit_code == 0
    assert "".join(checked.output.split("\n")) == f"{tmp_path}/graph.json is sound"


def test_verify_prints_every_problem_and_fails(tmp_path: Path) -> None:
    bad = a_fork().node("lost", "tests.unheard").edge("join", "lost", when="nobody > 1").to_dict()
    checked = _call(a_docket(NOWHERE), "graphs", "verify", _file(tmp_path, bad))
    assert checked.exit_code == 1
    assert "tests.unheard" in checked.output
    assert "nobody" in checked.output

    listed = _call(a_docket(NOWHERE), "graphs", "verify", _file(tmp_path, bad), "--json")
    assert listed.exit_code == 1
    record = json.loads(listed.output)
    assert record["graph_hash"] == graph_hash(Graph.from_dict(bad))
    assert {found["path"] for found in record["diagnostics"]} >= {"nodes.lost.call"}
    assert all(set(found) == {"severity", "code", "path", "message"} for found in record["diagnostics"])


def test_verify_reads_standard_input() -> None:
    checked = _call(a_docket(NOWHERE), "graphs", "verify", "-", input=json.dumps(a_graph().to_dict()))
    assert checked.exit_code == 0, checked.output


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "is no JSON"), ("[" * 100_000, "is no JSON"), ('{"version": 1}', "$.id"), ('{"version": 9}', "$.version")],
)
def test_verify_of_what_is_no_graph_names_the_place(text: str, said: str) -> None:
    checked = _call(a_docket(NOWHERE), "graphs", "verify", "-", input=text)
    assert checked.exit_code == 1
    assert said in checked.output
    assert "Traceback" not in checked.output


def test_graphs_alone_still_lists(docket: Docket, published: Graph) -> None:
    listed = json.loads(_call(docket, "graphs", "--json").output)
    assert [graph["graph_id"] for graph in listed] == [published.id]


def test_a_name_with_control_characters_is_shown_quoted(docket: Docket) -> None:
    docket.save_graph(a_graph(id="\x1b[2J\norder"))
    shown = _call(docket, "graphs", "show", "\x1b[2J\norder")
    assert shown.exit_code == 0, shown.output
    assert "\x1b" not in shown.output
    assert json.dumps("\x1b[2J\norder") in shown.output


def test_verify_tells_a_script_too_that_a_document_cannot_be_read() -> None:
    checked = _call(a_docket(NOWHERE), "graphs", "verify", "-", "--json", input='{"version": 9, "id": "g"}')
    assert checked.exit_code == 1
    assert json.loads(checked.output) == {
        "graph_id": None,
        "graph_hash": None,
        "diagnostics": [
            {
                "severity": "error",
                "code": "malformed_document",
                "path": "$.version",
                "message": "this release reads version 1, got 9",
            }
        ],
    }
