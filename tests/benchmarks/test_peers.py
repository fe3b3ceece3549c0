"""The comparison with peers, as far as it needs none: its procedure, its checks, its tables."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers.contest import CONTESTANTS, ROOT, medians
from benchmarks.peers.environment import PACKAGES, REQUIREMENTS
from benchmarks.peers.reach import GOALS, best
from benchmarks.peers.report import BEGIN, END, markdown, rewrite, sheets
from benchmarks.peers.tally import Tally
from benchmarks.peers.workloads import workloads


def test_the_command_runs_the_floor_and_docket_side_by_side(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    command = [sys.executable, "-m", "benchmarks.peers", "--smallest", "--only", "floor", "docket"]
    command += ["--workload", "chain100", "drain", "--json", str(file), "--home", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    results = json.loads(file.read_text(encoding="utf-8"))
    engines = {figure["workload"]: list(figure["engines"]) for figure in results["figures"]}
    assert engines == {"chain100": ["floor", "docket"], "drain": ["floor", "docket"]}
    assert results["servers"]["fsync"] == "on"
    assert list(tmp_path.iterdir()) == [file], "nothing of the peers is made when none takes part"


def test_every_contestant_has_its_script_and_known_workloads() -> None:
    known = workloads("full")
    for contestant in CONTESTANTS.values():
        assert find_spec(f"benchmarks.peers.engines.{contestant.name}") is not None
        assert set(contestant.workloads) <= set(known)


def test_every_requirement_is_pinned() -> None:
    lines = [line for line in REQUIREMENTS.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    assert [line for line in lines if "==" not in line] == []
    assert set(PACKAGES) <= {line.partition("==")[0] for line in lines}


@pytest.mark.parametrize(
    ("bodies", "complaint"),
    [
        ([(0, 0), (0, 1), (1, 0)], "missing"),
        ([(0, 0), (0, 1), (1, 0), (1, 1), (1, 1)], "twice"),
        ([(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)], "unknown"),
    ],
)
def test_a_step_that_was_lost_repeated_or_made_up_fails_its_sample(
    tmp_path: Path, bodies: list[tuple[int, int]], complaint: str
) -> None:
    tally = Tally(tmp_path)
    for run, step in bodies:
        tally.note(run, step)
    assert tally.count() == len(bodies)
    with pytest.raises(AssertionError, match=complaint):
        tally.verify(range(2), steps=2)


def test_steps_that_were_each_executed_once_are_sound(tmp_path: Path) -> None:
    tally = Tally(tmp_path)
    for run in range(2):
        for step in range(2):
            tally.note(run, step)
    tally.verify(range(2), steps=2)


def test_medians_reach_into_figures_of_figures() -> None:
    samples = [{"a": 1, "b": {"c": 5}}, {"a": 9, "b": {"c": 7}}, {"a": 2, "b": {"c": 6}}]
    assert medians(samples) == {"a": 2, "b": {"c": 6}}


def _row(speed: float) -> dict[str, Any]:
    return {"per_second": speed, "wal_per_step": 900.0, "wal_per_run": 90_000.0, "table_bytes_per_step": 300.0}


FIGURES = {
    "chain100": {"floor": _row(4_000), "docket": _row(1_900), "langgraph": _row(800), "dbos": _row(1_000),
                 "celery": _row(2_000)}
}  # fmt: skip


def test_the_best_durable_peer_is_the_fastest_of_its_kind() -> None:
    assert best(FIGURES, "chain100", "durable") == ("dbos", 1_000)
    assert best(FIGURES, "drain", "durable") is None


def test_a_goal_says_whether_it_is_reached_missed_or_not_taken() -> None:
    reached = {goal.what: goal.reached(FIGURES) for goal in GOALS}
    assert reached["100-node chain, of the best durable peer"] is True
    assert reached["100-node chain, of the bare statement"] is False
    assert reached["wake by a start, p50"] is None


def test_the_tables_go_between_the_markers_and_nothing_else_changes(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    facts = {
        "machine": {"cpus": 2, "machine": "x", "system": "s", "python": "3", "load_average": [0.1], "packages": {}},
        "peers": {"dbos": "1.0"},
        "servers": {"fsync": "on"},
        "run": {"rounds": 3, "size": "full"},
    }
    rewrite(page, markdown(sheets(list(workloads("full").values()), FIGURES), facts))
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"before\n{BEGIN}\n")
    assert text.endswith(f"\n{END}\nafter\n")
    assert "old" not in text
    assert "| docket_celery | 1,900 | 0.47 | 1.90 | 900 | 300 |" in text
    assert "dbos 1.0" in text


def test_a_page_without_markers_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing here", encoding="utf-8")
    with pytest.raises(ValueError, match="figures: begin"):
        rewrite(page, "text")


def test_the_documentation_has_the_place_for_the_tables() -> None:
    text = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert [text.count(marker) for marker in (BEGIN, END)] == [1, 1]
