"""Celery apps with docket for the worker tests: made in this process, or as a module that `celery` processes load."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from celery import Celery

from docket_celery import FINISH, START, Docket, Graph, Interrupt, node

ABSENT_BROKER = "redis://127.0.0.1:1/0"
"""Nothing listens there, and connecting is refused at once."""
_numbers = itertools.count(1)


def a_docket(database_url: str | None, *, broker: str = ABSENT_BROKER, **settings: Any) -> Docket:
    """Docket on a new app that is not the process's current one."""
    app = Celery(f"app-{next(_numbers)}", broker=broker, set_as_current=False)
    if database_url is not None:
        app.conf.docket_database_url = database_url
    app.conf.update(settings)
    return Docket(app)


@node(name="tests.greet")
def greet(name: str) -> dict[str, Any]:
    return {"greeting": f"Hello {name}"}


@node(name="tests.ask")
def ask(approved: bool | None = None) -> Interrupt | None:
    return Interrupt("approved", schema=bool, payload={"why": "because"}) if approved is None else None


@node(name="tests.misspelt")
def misspelt() -> dict[str, Any]:
    return {"greting": "Hello"}


def a_graph(call: str = "tests.greet", id: str = "greeting") -> Graph:
    """One node with one input."""
    return (
        Graph(id)
        .input("name", str)
        .field("greeting", str)
        .node("greet", call, inputs=None if call == "tests.greet" else {})
        .edge(START, "greet")
        .edge("greet", FINISH)
        .output("greeting")
    )


def a_question() -> Graph:
    """One node that asks."""
    return Graph("question").field("approved", bool).node("ask", "tests.ask").edge(START, "ask").edge("ask", FINISH)


class Shell:
    """Runs `celery -A ...` as a user would: a process of its own, in a directory with one app module."""

    APP = """
import json, os
from celery import Celery
import support.apps

app = Celery("proj", broker=os.environ["PROJ_BROKER_URL"])
app.conf.update(json.loads(os.environ["PROJ_SETTINGS"]))
if os.environ.get("PROJ_DOCKET"):
    from docket_celery import Docket
    Docket(app)
"""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "proj.py").write_text(self.APP)

    def environment(
        self, settings: dict[str, Any], *, broker: str = ABSENT_BROKER, docket: bool = True
    ) -> dict[str, str]:
        tests = Path(__file__).parents[1]
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith(("COLUMNS", "CELERY_"))},
            "PYTHONPATH": os.pathsep.join(
                [str(tests), str(self.directory), *filter(None, [os.environ.get("PYTHONPATH")])]
            ),
            "PROJ_BROKER_URL": broker,
            "PROJ_SETTINGS": json.dumps(settings),
            "PROJ_DOCKET": "1" if docket else "",
        }

    def run(
        self, *arguments: str, app: str | None = "proj", docket: bool = True, timeout: float = 120.0, **settings: Any
    ) -> subprocess.CompletedProcess[str]:
        """Waits for the process to end, within `timeout` seconds; its whole output is in `stdout`."""
        chosen = [] if app is None else ["-A", app]
        return subprocess.run(
            [sys.executable, "-m", "celery", *chosen, *arguments],
            cwd=self.directory,
            env=self.environment(settings, docket=docket),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
        )
