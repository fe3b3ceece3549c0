"""Lets a node begin only while its claim allows it, and keeps the claim for as long as the node may take.

Wraps the process's executor for one drain. How the executor runs siblings, together or in turn, is its own business:
each attempt is asked for at the instant at which it would really begin.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from docket_celery.runtime.executor import Attempt, AttemptResult, Executor, IsVoid, MayBegin, Raised, always, never
from docket_celery.vehicle.drain import Drain


class ClaimedWork:
    """Implements `Executor`.

    An attempt does not begin once the claim was found lost or the worker wants to stop; nor, when nothing renews the
    claim (`renewed` false), if it could end later than two thirds of the TTL after the claim was refreshed. One that
    runs when the claim is found lost is void.

    One that failed in the vehicle's own thread is noted for the slot. What hosts put in order there between two tasks
    (the connections of Django, a session of SQLAlchemy) may be why it failed, and would fail every run that follows
    here. None of that reaches a helper thread: it is not used again.
    """

    def __init__(self, executor: Executor, drain: Drain, *, renewed: bool, stopping: Callable[[], bool]) -> None:
        self._executor = executor
        self._drain = drain
        self._renewed = renewed
        self._stopping = stopping
        self._lock = threading.Lock()
        self._thread = threading.get_ident()
        self._began_here = False

    def execute(
        self, attempts: Sequence[Attempt], may_begin: MayBegin = always, is_void: IsVoid = never
    ) -> Sequence[AttemptResult]:
        self._drain.busy_for(0.0)
        self._began_here = False
        results = self._executor.execute(
            attempts,
            lambda timeout: may_begin(timeout) and self._may_begin(timeout),
            lambda: is_void() or self._drain.held.lost,
        )
        if self._began_here and any(isinstance(result, Raised) for result in results):
            self._drain.succession.has_failed = True
        return results

    def _may_begin(self, timeout: float | None) -> bool:
        """Called in the attempt's own thread."""
        drain = self._drain
        limit = float("inf") if timeout is None else timeout
        if drain.held.lost or self._stopping():
            return False
        with self._lock:
            ends_by = drain.monotonic() + limit
            if not self._renewed and ends_by > drain.expires_at - drain.lease.orphan_ttl.total_seconds() / 3:
                return False
            drain.held.until = max(drain.held.until, ends_by)
            self._began_here = self._began_here or threading.get_ident() == self._thread
        return True
