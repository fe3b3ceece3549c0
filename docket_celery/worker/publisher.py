"""Sends leases and nudges to the broker, bounded and best effort.

One private, kept producer per process, on a connection of its own with short timeouts: a broker that is down or hangs
costs a caller half a second at most, and the host app's connections and settings stay as they are.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

from celery import Celery
from kombu.entity import Queue
from kombu.messaging import Producer

from docket_celery.config import Config
from docket_celery.holds import held
from docket_celery.storage.contracts.values import Lease
from docket_celery.worker.messages import to_message

logger = logging.getLogger("docket_celery")

DISPATCH = "docket_celery.dispatch"
VEHICLE = "docket_celery.vehicle"
PRUNE = "docket_celery.prune"

LIMIT = 0.5
"""Seconds that connecting to the broker, or one exchange with it, may take."""
COALESCE = 0.05
"""Seconds within which further nudges of this process are taken as already sent."""


class Publisher:
    """Publishes for one app. Implements `Launch` and `Waker`."""

    def __init__(self, app: Celery, config: Config, *, monotonic: Callable[[], float]) -> None:
        self._app = app
        self._config = config
        self._monotonic = monotonic
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._producer: Producer | None = None
        self._nudged_at = float("-inf")
        self._timer: threading.Timer | None = None
        self._timer_due = float("inf")

    def __call__(self, leases: Sequence[Lease]) -> int:
        """Publishes leases in order over one producer; how many went out."""
        for count, lease in enumerate(leases):
            if not self._send(
                VEHICLE,
                self._config.queue,
                {"lease": to_message(lease)},
                shadow=f"{VEHICLE}[{lease.graph_id}]",
                argsrepr="()",
                kwargsrepr=f"run={lease.run_id} graph={lease.graph_id} attempt={lease.claim_attempt}",
                expires=max(3_600.0, 10 * self._config.orphan_ttl),
            ):
                return count
        return len(leases)

    def wake(self, *, after: float = 0.0) -> None:
        """Nudges the dispatcher, unless this process has just done so, or is about to. Never raises.

        A nudge in the future is kept by a thread of this process, never by a message with a countdown: what it is for
        is in the database, and the tick finds it anyway.
        """
        self._own_process()
        now = self._monotonic()
        if after > self._config.poll_interval:
            return
        if after > 0.0:
            self._nudge_at(now + after)
        elif now - self._nudged_at >= COALESCE:
            self._nudged_at = now
            self._send(DISPATCH, self._config.tick_queue, {"nudge": True}, expires=60.0)

    def _nudge_at(self, due: float) -> None:
        """Sets the process's one timer to the earliest instant asked for."""
        with self._lock:
            if self._timer is not None and self._timer_due <= due:
                return
            if self._timer is not None:
                self._timer.cancel()
            self._timer_due = due
            self._timer = threading.Timer(due - self._monotonic(), self._timer_fired)
            self._timer.daemon = True
            self._timer.start()

    def _timer_fired(self) -> None:
        with self._lock:
            self._timer = None
        self.wake()

    def _send(self, task: str, queue: str, kwargs: dict[str, Any], **options: Any) -> bool:
        self._own_process()
        with held(), self._lock:
            try:
                self._app.send_task(
                    task,
                    kwargs=kwargs,
                    queue=self._queue(queue),
                    producer=self._kept_producer(),
                    retry=False,
                    ignore_result=True,
                    add_to_parent=False,
                    serializer="json",
                    compression=None,
                    delivery_mode=2,
                    **options,
                )
            except Exception as error:
                self._drop_producer()
                logger.warning("could not publish %s to queue %s: %s: %s", task, queue, type(error).__name__, error)
                return False
        return True

    def _queue(self, name: str) -> Queue:
        """The queue as a worker of this app declares it, also where the host lets no queue be missing."""
        queues = self._app.amqp.queues
        queue: Queue = queues[name] if name in queues else queues.new_missing(name)
        return queue

    def _kept_producer(self) -> Producer:
        if self._producer is None:
            limits = dict.fromkeys(("socket_timeout", "socket_connect_timeout", "read_timeout", "write_timeout"), LIMIT)
            connection = self._app.connection_for_write(
                connect_timeout=LIMIT, transport_options={**limits, "max_retries": 0}
            )
            self._producer = self._app.amqp.Producer(connection, auto_declare=False)
        return self._producer

    def _drop_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            try:
                producer.connection.collapse()
            except Exception:
                logger.debug("closing a broken broker connection failed", exc_info=True)

    def _own_process(self) -> None:
        """A forked child starts afresh: the parent's socket is not its own."""
        if os.getpid() != self._pid:
            self._reset()
