"""The shipped fixtures: found by pytest on its own, and cheap for every pytest run that does not use them."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from docket_celery import START, Graph, Sleep
from docket_celery.testing import ManualClock

graph = Graph("rests").node("rest", lambda: Sleep(60)).edge(START, "rest")


def test_the_entry_point_names_the_plugin() -> None:
    (found,) = [point for point in entry_points(group="pytest11") if point.name == "docket_celery"]
    assert found.value == "docket_celery.pytest_plugin"


def test_runs_share_the_fixtures_clock(docket_clock: ManualClock, docket_run_inline: Any) -> None:
    began = docket_clock.now()
    docket_run_inline(graph)
    assert docket_clock.now() - began == timedelta(seconds=60)


def test_a_run_by_moments_and_one_with_crashes_are_fixtures_too(
    docket_inline_run: Any, docket_run_with_crashes: Any
) -> None:
    run = docket_inline_run(graph)
    assert run.step() is not None
    assert docket_run_with_crashes(graph).status.value == "done"


def test_a_suite_of_somebody_elses_finds_the_fixtures(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text("def test_it(docket_clock):\n    assert docket_clock.monotonic() == 0.0\n")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "1 passed" in ended.stdout


def test_importing_the_plugin_loads_neither_the_runtime_nor_celery() -> None:
    listing = "import sys, docket_celery.pytest_plugin; print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(ended.stdout.split())
    assert not loaded & {"celery", "pydantic", "psycopg", "cel", "docket_celery.testing", "docket_celery.compiler"}
