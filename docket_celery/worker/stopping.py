"""How the processes of a worker learn of its warm shutdown.

Celery tells the parent only. One byte of anonymous shared memory, made before the pool forks, tells the children: they
read it between moments. Where the pool does not fork, the same byte serves threads and greenlets of one process.
"""

from __future__ import annotations

import mmap


class StopFlag:
    """Raised once, by the parent; read by everyone it forked."""

    def __init__(self) -> None:
        self._byte = mmap.mmap(-1, 1)

    def raise_(self) -> None:
        """Tells every process that the worker is shutting down."""
        self._byte[0] = 1

    def __call__(self) -> bool:
        return self._byte[0] == 1
