"""Child processes end when they are told to, and when their starter does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from docket_celery.embedded.process import Child, StartFailed

WITH_GRANDCHILD = """
import subprocess, sys, time
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(grandchild.pid, flush=True)
time.sleep(600)
"""
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
STARTER = """
import sys, time
from pathlib import Path
from docket_celery.embedded.process import Child
child = Child.start([sys.executable, "-c", "import time; time.sleep(600)"], log=Path(sys.argv[1]))
print(child.pid, flush=True)
time.sleep(600)
"""


def python(code: str, log: Path) -> Child:
    return Child.start([sys.executable, "-c", code], log=log)


def is_gone(pid: int) -> bool:
    """Whether no such process runs; one that has ended and only waits for its parent counts as gone."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in "ZX"


def eventually(fact: Callable[[], bool], limit: float = 20.0) -> None:
    deadline = time.monotonic() + limit
    while not fact():
        assert time.monotonic() < deadline, "the awaited fact did not come about"
        time.sleep(0.01)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "child.log"


def test_stop_ends_the_child_and_what_it_left_in_its_group(log: Path) -> None:
    child = python(WITH_GRANDCHILD, log)
    eventually(lambda: log.read_text().endswith("\n"))
    grandchild = int(log.read_text())
    child.stop()
    assert child.exit_code == -signal.SIGTERM
    eventually(lambda: is_gone(grandchild))


def test_a_child_that_ignores_the_gentle_signal_is_killed(log: Path) -> None:
    child = python(DEAF, log)
    eventually(lambda: child.tail() == "deaf")
    child.stop(timeout=0.2)
    assert child.exit_code == -signal.SIGKILL


def test_a_frozen_child_can_be_stopped(log: Path) -> None:
    child = python(WITH_GRANDCHILD, log)
    child.signal(signal.SIGSTOP)
    child.stop()
    assert child.exit_code == -signal.SIGTERM


def test_stopping_twice_is_harmless(log: Path) -> None:
    child = python("pass", log)
    assert child.wait(20.0)
    child.stop()
    child.stop()
    child.signal(signal.SIGTERM)
    assert child.exit_code == 0


def test_a_child_that_ends_while_starting_is_reported_with_the_end_of_its_log(log: Path) -> None:
    child = python("raise SystemExit('no room on the moon')", log)
    with pytest.raises(StartFailed, match="ended with status 1 while starting:\nno room on the moon"):
        child.wait_until(lambda: False, timeout=20.0)


def test_a_child_that_is_never_ready_is_killed_and_reported(log: Path) -> None:
    child = python("import time; time.sleep(600)", log)
    with pytest.raises(StartFailed, match=r"was not ready within 0\.1 s"):
        child.wait_until(lambda: False, timeout=0.1)
    assert not child.alive


def test_a_program_that_does_not_exist_is_an_error_at_once(log: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Child.start([log.parent / "no-such-program"], log=log)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells a child of its parent's death")
def test_the_child_dies_with_a_starter_that_is_killed(log: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTER, os.fspath(log)], stdout=subprocess.PIPE, text=True
    ) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        assert not is_gone(pid)
        starter.kill()
    eventually(lambda: is_gone(pid))
