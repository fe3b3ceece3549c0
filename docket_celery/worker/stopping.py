"""How the processes of a worker learn that it stops.

Celery tells the parent only. One byte of anonymous shared memory, made before the pool forks, tells the children: they
read it between moments. Where the pool does not fork, the same byte serves threads and greenlets of one process. A cold
stop gives no notice: the pool's terminate handler raises inside the child, and its mark is all there is to see.
"""

from __future__ import annotations

import mmap

from billiard import common


class StopFlag:
    """Raised by the parent; read by everyone it forked."""

    def __init__(self) -> None:
        self._byte = mmap.mmap(-1, 1)

    def raise_(self) -> None:
        """Tells every process that the worker is shutting down."""
        self._byte[0] = 1

    def lower(self) -> None:
        """A worker starts: an earlier one of this process, as in tests, has left."""
        self._byte[0] = 0

    def __call__(self) -> bool:
        return self._byte[0] == 1 or is_being_terminated()


def is_being_terminated() -> bool:
    """Whether the terminate handler of the pool has run in this child, whatever became of the exception it raised."""
    return bool(common._should_have_exited[0])
