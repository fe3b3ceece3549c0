"""Threads that are kept for a while and used again: to start one costs more than most of what is done in it.

Where threads are greenlets, so are these. Whatever work leaves behind in the locals of its thread is still there for
the work that comes next.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final, TypeAlias

from docket_celery.daemons import begin_daemon

Work: TypeAlias = Callable[[], object]
"""If it returns anything true, its thread is not fit for further work."""

KEPT: Final = 10.0
"""Seconds from its start in which a thread takes further work, busy or idle.

A bound on its whole life, since nodes keep things in the locals of their threads: a database connection that has broken
there must not fail every node for ever. It mostly ends long before that, with the first node that fails in the thread.
"""


class KeptThreads:
    """Daemon threads of this process; whichever became free last is used first. A forked child begins with none."""

    def __init__(self, monotonic: Callable[[], float], *, kept: float = KEPT) -> None:
        self._monotonic = monotonic
        self._kept = kept
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._idle: deque[SimpleQueue[Work]] = deque()
        """The inbox of each thread that waits for work. Whoever takes one out, in one indivisible step, owns it."""

    def run(self, work: Work) -> bool:
        """Begins `work` in a thread that has none, or in a new one; False where none can be had. A thread in which it
        raises, or that it calls unfit, ends.
        """
        self._own_process()
        try:
            inbox = self._idle.pop()
        except IndexError:
            inbox = SimpleQueue()
            if begin_daemon(partial(self._live, inbox), "docket-nodes") is None:
                return False
        inbox.put(work)
        return True

    def _live(self, inbox: SimpleQueue[Work]) -> None:
        """A thread's whole life. It holds on to no work while it waits for the next."""
        idle, until = self._idle, self._monotonic() + self._kept
        if inbox.get()():
            return
        while (left := until - self._monotonic()) > 0:
            idle.append(inbox)
            try:
                work = inbox.get(timeout=left)
            except Empty:
                try:
                    idle.remove(inbox)
                except ValueError:  # Somebody took it at the last instant, to put work into it.
                    work = inbox.get()
                else:
                    return
            if work():
                return
            del work

    def _own_process(self) -> None:
        if os.getpid() != self._pid:
            self._reset()
