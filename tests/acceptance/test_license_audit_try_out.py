"""The README's first command, as a newcomer sees it: a worker is killed, the books balance, nothing stays behind."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

from fleet import eventually

ROOT = Path(__file__).resolve().parents[2]


def test_the_try_out_survives_a_killed_worker_and_leaves_no_process_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.license_audit", "--report", os.fspath(tmp_path / "report")]
    environment = {**os.environ, "TMPDIR": os.fspath(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SIGKILL" in done.stdout
    assert "lost or committed twice  nothing" in done.stdout
    with (tmp_path / "report" / "report.csv").open(newline="") as file:
        names = {row["name"] for row in csv.DictReader(file)}
    assert {"celery", "psycopg"} <= names
    # What was killed together with its starter may take a moment to be gone.
    eventually(lambda: still_running(os.fspath(tmp_path)) == [])


def still_running(place: str) -> list[str]:
    """Command lines of processes that have `place` in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if place in words:
            found.append(words)
    return found
