"""What a forked child can do while a thread of its parent, which it has not got, holds a lock."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Final

_LONGEST: Final = 10
"""Seconds that the child may take."""


def forked_while_held(lock: threading.Lock, work: Callable[[], object]) -> int:
    """The exit status of a child that does `work`: 0, or minus the signal that ends one which waits for ever."""
    held, forked = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            forked.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(_LONGEST)
            work()
            status = 0
        finally:
            # Without the clean-up of the test session.
            os._exit(status)
    forked.set()
    holder.join()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
