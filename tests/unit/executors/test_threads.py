"""Threads are used again, and none is kept for ever."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from pathlib import Path
from typing import Any

from support.attempts import AMPLE
from support.clock import eventually

from docket_celery.executors.threads import KeptThreads

TESTS = Path(__file__).parents[2]
LONG = 1000.0


def done_by(threads: KeptThreads) -> threading.Thread:
    """Has a thread do something, and waits until it has none to do."""
    done: list[threading.Thread] = []
    threads.run(lambda: done.append(threading.current_thread()))
    eventually(lambda: done and (threads._idle or not done[0].is_alive()))
    (thread,) = done
    return thread


def test_a_thread_is_used_again() -> None:
    threads = KeptThreads(time.monotonic, kept=LONG)
    assert len({done_by(threads) for _ in range(10)}) == 1


def test_work_never_waits_for_a_thread_that_is_busy() -> None:
    threads = KeptThreads(time.monotonic, kept=LONG)
    together = threading.Barrier(3)
    for _ in range(2):
        threads.run(lambda: together.wait(AMPLE) and None)
    together.wait(AMPLE)


def test_a_thread_without_work_ends_in_time() -> None:
    threads = KeptThreads(time.monotonic, kept=0.05)
    thread = done_by(threads)
    thread.join(AMPLE)
    assert not thread.is_alive()
    assert not threads._idle
    assert done_by(threads) is not thread


def test_a_thread_that_always_has_work_ends_in_time_too() -> None:
    now = [0.0]
    threads = KeptThreads(lambda: now[0], kept=10.0)
    first = done_by(threads)
    now[0] = 9.0
    assert done_by(threads) is first
    threads.run(lambda: now.__setitem__(0, 10.0))
    first.join(AMPLE)
    assert not first.is_alive()
    assert done_by(threads) is not first


def test_no_work_is_lost_while_threads_end() -> None:
    threads = KeptThreads(time.monotonic, kept=0.0005)
    done = threading.Semaphore(0)
    for _ in range(500):
        threads.run(lambda: done.release())
        assert done.acquire(timeout=AMPLE)


def test_work_that_comes_while_a_thread_gives_up_is_done() -> None:
    taken: list[Any] = []

    class Taken(deque[Any]):
        """Somebody takes each inbox out at once, and has put nothing into it yet."""

        def append(self, inbox: Any) -> None:
            taken.append(inbox)

    threads = KeptThreads(lambda: 0.0, kept=1e-9)
    threads._idle = Taken()
    first, second = threading.Event(), threading.Event()
    threads.run(first.set)
    assert first.wait(AMPLE)
    while not taken:
        os.sched_yield()
    taken.pop().put(second.set)
    assert second.wait(AMPLE)


def test_a_thread_that_waits_holds_on_to_nothing() -> None:
    class Work:
        def __call__(self) -> None: ...

    threads = KeptThreads(time.monotonic, kept=LONG)
    kept = []
    for _ in range(2):
        work = Work()
        kept.append(weakref.ref(work))
        threads.run(work)
        del work
        done_by(threads)
    eventually(lambda: [reference() for reference in kept] == [None, None])


FORK = """
import os, threading, time
from docket_celery.executors.threads import KeptThreads
threads = KeptThreads(time.monotonic, kept=1000.0)
def work():
    done = threading.Event()
    threads.run(done.set)
    assert done.wait(30)
work()
while not threads._idle:
    os.sched_yield()
child = os.fork()
work()
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


def test_a_forked_child_uses_threads_of_its_own() -> None:
    forked = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK], cwd=TESTS, capture_output=True, text=True, timeout=AMPLE
    )
    assert (forked.returncode, forked.stderr) == (0, "")


EXIT = """
import threading, time
from docket_celery.executors.threads import KeptThreads
threads = KeptThreads(time.monotonic, kept=1000.0)
busy, done = threading.Event(), threading.Event()
threads.run(done.set)
threads.run(lambda: busy.set() or threading.Event().wait())
assert busy.wait(30) and done.wait(30)
"""


def test_neither_idle_nor_busy_threads_keep_the_interpreter_from_ending() -> None:
    ended = subprocess.run([sys.executable, "-c", EXIT], cwd=TESTS, capture_output=True, text=True, timeout=AMPLE)
    assert (ended.returncode, ended.stderr) == (0, "")
