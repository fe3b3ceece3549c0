"""Threads that help in the background: all of them daemons, and each of them something that can be done without.

A process may have no thread left to give: a container bounds them, or a node has taken them all. That is nobody's
failure, so it is said in the log, and whoever needed the thread asks again at the next occasion.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

logger = logging.getLogger("docket_celery")


def begin_daemon(work: Callable[[], None], name: str) -> threading.Thread | None:
    """A daemon thread that has begun `work`, or None where none can be had."""
    try:
        thread = threading.Thread(target=work, name=name, daemon=True)
        thread.start()
    except RuntimeError as error:
        logger.warning("thread %s could not be started: %s", name, error)
        return None
    return thread
