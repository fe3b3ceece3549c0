"""Ends a prefork child in which an overdue node still runs in a helper thread, once its vehicle is acknowledged.

It leaves as a child leaves that has reached `--max-tasks-per-child`: between two tasks, with the same exit code, so
that the pool puts a new one in its place and takes back what it may have sent meanwhile.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from types import FrameType

from billiard import pool

from docket_celery.daemons import begin_daemon
from docket_celery.executors import Overdue
from docket_celery.executors.interruption import find_signal

logger = logging.getLogger("docket_celery")

LOOK_EVERY = 0.05
"""Seconds between two looks at whether the child is idle."""

_retiring: set[int] = set()
"""The process in which a retirement is under way, if there is one: a child inherits nothing from its parent's."""


def retire(overdue: Overdue) -> None:
    """To be called in the main thread of a pool's child that has left threads behind."""
    found = find_signal()
    if found is None or os.getpid() in _retiring:
        return
    _retiring.add(os.getpid())
    logger.warning("%d overdue node threads still run in this pool process: it will be replaced", overdue.count)

    def signalled(number: int, frame: FrameType | None) -> None:
        if overdue.count and _is_idle(frame):
            raise SystemExit(pool.EX_RECYCLE)

    def watch() -> None:
        pause = threading.Event()
        while overdue.count:
            signal.pthread_kill(main, found)
            pause.wait(LOOK_EVERY)
        _retiring.discard(os.getpid())

    main = threading.get_ident()
    signal.signal(found, signalled)
    if begin_daemon(watch, "docket-retirement") is None:
        _retiring.discard(os.getpid())


def _is_idle(frame: FrameType | None) -> bool:
    """Whether the pool's work loop is asking for a task: one that it has not accepted yet goes to another child."""
    called = None
    while frame is not None and not _is_work_loop(frame):
        called, frame = frame, frame.f_back
    return frame is not None and called is not None and called.f_code.co_name == "receive"


def _is_work_loop(frame: FrameType) -> bool:
    """By its name and module: what the class holds under that name may be a wrapper around it, such as Sentry's."""
    return frame.f_code.co_name == "workloop" and frame.f_globals.get("__name__") == pool.__name__
