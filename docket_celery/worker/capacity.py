"""How many vehicles this worker can run, told to the database for as long as it is a consumer.

The registration lives in a consumer step: it ends with the broker connection, which is exactly when the worker stops
being one. A worker that freezes or dies ages out: the consumer's own timer asks for each renewal. Its loop never waits
for the database.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

from celery import bootsteps
from celery.concurrency import prefork, solo
from celery.worker.consumer.tasks import Tasks

from docket_celery.errors import DocketError
from docket_celery.worker.health import disagreeing
from docket_celery.worker.registration import Registration
from docket_celery.worker.setup import Docket

logger = logging.getLogger("docket_celery")

RENEW_EVERY = 5.0
"""Seconds between two registrations."""
LIVES = timedelta(seconds=20)
"""How long one registration counts."""
PATIENCE = 1.0
"""Seconds that a consumer's start and its stop wait for the database."""


def slots_of(controller: Any) -> int:
    """The pool's maximum, under autoscale too: it grows only when messages come. A solo pool has one slot.

    Of a prefork pool that runs, what it is now: `celery control` may have had it grow or shrink, or set the autoscaler
    anew. Other pools count with what they began with.
    """
    if isinstance(controller.pool, solo.TaskPool):
        return 1
    autoscaler = getattr(controller, "autoscaler", None)
    if autoscaler is not None:
        return max(int(autoscaler.max_concurrency), 1)
    if isinstance(controller.pool, prefork.TaskPool) and controller.pool._pool is not None:
        return max(int(controller.pool.num_processes), 1)
    counts = (getattr(controller, "max_concurrency", None), controller.concurrency)
    return max((count for count in counts if isinstance(count, int)), default=1)


class RegisterSlots(bootsteps.StartStopStep):  # type: ignore[misc]
    """Registers and renews this worker's slots while it consumes the docket queue."""

    requires = (Tasks,)

    def __init__(self, consumer: Any, **options: Any) -> None:
        self._docket = Docket.of(consumer.app)
        self._consumer = consumer
        self._registration = Registration(self._register, self._unregister)
        self._compared = False
        self._timer: Any = None
        super().__init__(consumer, **options)

    def include_if(self, consumer: Any) -> bool:
        return self._docket is not None and self._docket.config.queue in consumer.app.amqp.queues.consume_from

    def start(self, consumer: Any) -> None:
        self._registration.begin(patience=PATIENCE)
        self._timer = consumer.timer.call_repeatedly(RENEW_EVERY, self._registration.ask)

    def stop(self, consumer: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._registration.end(patience=PATIENCE)

    def _register(self) -> None:
        assert self._docket is not None
        consumer, orphan_ttl = self._consumer, self._docket.engine.orphan_ttl
        if self._docket.config.queue not in consumer.app.amqp.queues.consume_from:
            self._unregister()  # `celery control cancel_consumer`: its pool goes on with what else the worker consumes.
            return
        slots = slots_of(consumer.controller)
        try:
            self._docket.fleet.register_worker(consumer.hostname, slots, ttl=LIVES, orphan_ttl=orphan_ttl)
            if not self._compared:
                self._compare(self._docket, orphan_ttl)
                self._compared = True
        except DocketError as error:
            logger.warning("could not register this worker's slots: %s", error)

    def _compare(self, docket: Docket, orphan_ttl: timedelta) -> None:
        """Warns, once for each start, of workers that would take claims for lost sooner or later than this one."""
        others = disagreeing(docket.fleet.backlog(orphan_ttl=orphan_ttl).workers, orphan_ttl)
        if others:
            logger.warning(
                "docket_orphan_ttl is %g s here, but %s: whoever claims judges by its own, and could take a run from a "
                "worker that is well. Give all of them the same value",
                orphan_ttl.total_seconds(),
                others,
            )

    def _unregister(self) -> None:
        assert self._docket is not None
        try:
            self._docket.fleet.unregister_worker(self._consumer.hostname)
        except DocketError as error:
            logger.warning("could not unregister this worker's slots: %s", error)
