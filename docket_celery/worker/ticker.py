"""Ticks from the workers themselves, for fleets without beat (`docket_tick = "worker"`).

Each worker's own timer sends what beat would send, to the same queue. Several workers are as harmless as several beats:
a tick inside the interval of another one ends at its gate. The timer only publishes, for a bounded time, and never asks
the database: it runs in the consumer's loop, and a loop that waits takes no messages and answers no heartbeat.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from celery import bootsteps
from celery.worker import state
from celery.worker.consumer.tasks import Tasks

from docket_celery.clock import Jitter, RandomJitter
from docket_celery.worker.capacity import slots_of
from docket_celery.worker.schedule import periodic
from docket_celery.worker.setup import Docket

SPREAD = 0.25
"""Part of the interval that is added at random each time, so that workers do not fall into step."""


class Ticker(bootsteps.StartStopStep):  # type: ignore[misc]
    """Sends ticks for as long as this worker consumes the docket queue."""

    requires = (Tasks,)

    def __init__(self, consumer: Any, *, jitter: Jitter | None = None, **options: Any) -> None:
        self._docket = Docket.of(consumer.app)
        self._jitter = jitter or RandomJitter()
        self._timers: dict[str, Any] = {}
        super().__init__(consumer, **options)

    def include_if(self, consumer: Any) -> bool:
        docket = self._docket
        return (
            docket is not None
            and docket.config.tick == "worker"
            and docket.config.queue in consumer.app.amqp.queues.consume_from
        )

    def start(self, consumer: Any) -> None:
        assert self._docket is not None
        for task, interval in periodic(self._docket.config).items():
            self._set(consumer, task, interval, interval * self._jitter.fraction())

    def stop(self, consumer: Any) -> None:
        while self._timers:
            self._timers.popitem()[1].cancel()

    def _set(self, consumer: Any, task: str, interval: int, seconds: float) -> None:
        ring = partial(self._ring, consumer, task, interval)
        self._timers[task] = consumer.timer.call_after(seconds, ring)

    def _ring(self, consumer: Any, task: str, interval: int) -> None:
        """A worker without a free slot sends none: it could not take it, and ticks of its own would only pile up."""
        assert self._docket is not None
        if len(state.reserved_requests) < slots_of(consumer.controller):
            self._docket.publisher.tick(task)
        if task in self._timers:
            self._set(consumer, task, interval, interval * (1.0 + SPREAD * self._jitter.fraction()))
