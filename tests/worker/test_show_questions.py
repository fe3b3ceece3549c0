"""`docket show` of a run that waits for answers: what is asked, until when, and what it will take by itself."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from click.testing import CliRunner

from docket_celery import FINISH, START, Docket, Graph, Interrupt, RunStatus, node
from docket_celery.worker.commands import docket as group


@node(name="tests.ask_soon")
def ask_soon(verdict: str | None = None) -> Any:
    return Interrupt("verdict", timeout=3_600, default="nobody") if verdict is None else None


GRAPH = (
    Graph("asking_soon")
    .field("verdict", str)
    .node("ask", ask_soon)
    .edge(START, "ask")
    .edge("ask", FINISH)
    .output("verdict")
)


def _shown(docket: Docket, run_id: str, *options: str) -> str:
    arguments = ["show", run_id, *options]
    shown = CliRunner().invoke(group, arguments, obj=SimpleNamespace(app=docket.app), env={"COLUMNS": "160"})
    assert shown.exit_code == 0, shown.output
    return shown.output


def test_the_deadline_and_the_default_of_a_question_are_shown(docket: Docket) -> None:
    run = docket.start_run(docket.save_graph(GRAPH))
    docket.drain()
    parked = docket.await_run(run.id, timeout=10)
    assert parked.status is RunStatus.RUNNING
    record = json.loads(_shown(docket, run.id, "--json"))
    assert (record["view"], record["only_answers_missing"]) == ("scheduled", True)
    (question,) = record["interrupts"]
    assert question["default"] == "nobody"
    assert question["deadline"] == record["wake_at"]
    assert "nobody" in _shown(docket, run.id)
    docket.resolve_interrupt(run.id, question["id"], "yes")
    docket.drain()
    assert docket.await_run(run.id, timeout=10).output == {"verdict": "yes"}
