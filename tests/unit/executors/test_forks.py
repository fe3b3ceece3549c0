"""A node that forks: whatever its copy does, one process goes on as the vehicle."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]

PROGRAM = """
import os, sys, time
from support.attempts import attempt
from docket_celery.executors import FencedExecutor, NodeExecutor

class Hides(Exception):
    @property
    def __class__(self):
        sys.exit(9)

def leave(how):
    if how == "returns":
        return "the copy's"
    if how == "raises":
        raise ValueError("in the copy")
    if how == "hides its class":
        raise Hides
    sys.exit({"ends well": None, "ends with 7": 7, "ends with a message": "sorry"}[how])

def node(how):
    copy = os.fork()
    if copy == 0:
        print("in the copy")
        return leave(how)
    return os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])

async def async_node(how):
    return node(how)

def beside(how):
    return None

kind, how = sys.argv[1:]
function = async_node if kind.startswith("async") else node
executor = FencedExecutor(time.monotonic) if kind.endswith("fenced") else NodeExecutor(time.monotonic)
timeout = None if kind == "without a limit" else 20.0
attempts = [attempt(function, timeout=timeout, how=how)]
if kind.endswith("siblings"):
    attempts.append(attempt(beside, timeout=timeout, how=how))
first = executor.execute(attempts)[0]
print("came back with", first.value, flush=True)
"""
KINDS = ["alone", "without a limit", "siblings", "fenced", "async", "async siblings"]
WAYS = {"returns": 0, "raises": 1, "ends well": 0, "ends with 7": 7, "ends with a message": 1}


def forked(kind: str, how: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, kind, how],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, sys.path)])},
        capture_output=True,
        text=True,
        timeout=60.0,
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("how", "status"), WAYS.items(), ids=WAYS.keys())
def test_only_the_process_that_called_the_node_goes_on(kind: str, how: str, status: int) -> None:
    ended = forked(kind, how)
    assert ended.stdout.splitlines() == ["in the copy", f"came back with {status}"], ended.stderr
    assert ("ValueError: in the copy" in ended.stderr) == (how == "raises")


def test_a_copy_whose_error_ends_whoever_looks_at_it_ends_as_after_any_other() -> None:
    ended = forked("alone", "hides its class")
    assert ended.stdout.splitlines() == ["in the copy", "came back with 1"], ended.stderr
