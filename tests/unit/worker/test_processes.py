"""Which processes are at work, by what the system says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest
from support.clock import eventually

from docket_celery.renewal import Holder
from docket_celery.worker import processes
from docket_celery.worker.processes import is_at_work, this_process

ASLEEP = [sys.executable, "-c", "import sys; sys.stdin.read()"]


@pytest.fixture
def child() -> Iterator[tuple[subprocess.Popen[bytes], Holder]]:
    with subprocess.Popen(ASLEEP, stdin=subprocess.PIPE) as process:
        yield process, Holder(process.pid, int(processes._facts(process.pid)[processes._BORN]))
        process.kill()


def test_this_process_is_at_work() -> None:
    process = this_process()
    assert process is not None
    assert process.pid == os.getpid()
    assert is_at_work(process)


def test_another_process_of_the_same_number_does_not_count() -> None:
    process = this_process()
    assert process is not None
    assert not is_at_work(replace(process, born=process.born - 1))


def test_a_forked_child_is_a_process_of_its_own() -> None:
    process = this_process()
    pid = os.fork()
    if pid == 0:
        mine = this_process()
        os._exit(0 if mine is not None and mine.pid == os.getpid() and mine != process else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_process_that_waits_is_at_work_and_one_that_is_stopped_is_not(
    child: tuple[subprocess.Popen[bytes], Holder],
) -> None:
    process, holder = child
    assert is_at_work(holder)
    process.send_signal(signal.SIGSTOP)
    eventually(lambda: not is_at_work(holder))
    process.send_signal(signal.SIGCONT)
    eventually(lambda: is_at_work(holder))


def test_a_process_that_has_ended_is_not_at_work_before_and_after_its_parent_has_noticed(
    child: tuple[subprocess.Popen[bytes], Holder],
) -> None:
    process, holder = child
    process.kill()
    eventually(lambda: processes._facts(holder.pid)[processes._STATE] == "Z")
    assert not is_at_work(holder)
    process.wait()
    assert not is_at_work(holder)


def test_where_the_system_says_nothing_nobody_is_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_facts", lambda pid: [])
    assert not is_at_work(Holder(os.getpid(), 0))
    assert processes._of.__wrapped__(os.getpid()) is None
