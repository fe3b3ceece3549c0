"""How many vehicles this worker can run, told to the database for as long as it is a consumer.

The registration lives in a consumer step: it ends with the broker connection, which is exactly when the worker stops
being one. A worker that freezes or dies ages out.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

from celery import bootsteps
from celery.concurrency import solo
from celery.worker.consumer.tasks import Tasks

from docket_celery.errors import DocketError
from docket_celery.worker.setup import Docket

logger = logging.getLogger("docket_celery")

RENEW_EVERY = 5.0
"""Seconds between two registrations."""
LIVES = timedelta(seconds=20)
"""How long one registration counts."""


def slots_of(controller: Any) -> int:
    """The pool's maximum, under autoscale too: it grows only when messages come. A solo pool has one slot."""
    if isinstance(controller.pool, solo.TaskPool):
        return 1
    counts = (getattr(controller, "max_concurrency", None), controller.concurrency)
    return max((count for count in counts if isinstance(count, int)), default=1)


class RegisterSlots(bootsteps.StartStopStep):  # type: ignore[misc]
    """Registers and renews this worker's slots while it consumes the docket queue."""

    requires = (Tasks,)

    def __init__(self, consumer: Any, **options: Any) -> None:
        self._docket = Docket.of(consumer.app)
        self._timer: Any = None
        super().__init__(consumer, **options)

    def include_if(self, consumer: Any) -> bool:
        return self._docket is not None and self._docket.config.queue in consumer.app.amqp.queues.consume_from

    def start(self, consumer: Any) -> None:
        self._register(consumer)
        self._timer = consumer.timer.call_repeatedly(RENEW_EVERY, self._register, (consumer,))

    def stop(self, consumer: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._attempt("unregister", lambda fleet: fleet.unregister_worker(consumer.hostname))

    def _register(self, consumer: Any) -> None:
        slots = slots_of(consumer.controller)
        self._attempt("register", lambda fleet: fleet.register_worker(consumer.hostname, slots, ttl=LIVES))

    def _attempt(self, what: str, call: Any) -> None:
        assert self._docket is not None
        try:
            call(self._docket.fleet)
        except DocketError as error:
            logger.warning("could not %s this worker's slots: %s", what, error)
