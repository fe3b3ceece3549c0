"""Listens for wakes by others, where `docket_listen` is on: what a commit has told becomes a nudge.

Every worker of the queue is ready to, one of them does it. The step ends with the broker connection, so that the turn
goes to a worker that can nudge. Its thread belongs to the worker's parent process and is started after the pool.
"""

from __future__ import annotations

from typing import Any

from celery import bootsteps
from celery.worker.consumer.tasks import Tasks

from docket_celery.storage.postgres.listener import Listener
from docket_celery.worker.setup import Docket


class Listen(bootsteps.StartStopStep):  # type: ignore[misc]
    """Keeps a listener for as long as this worker consumes the docket queue."""

    requires = (Tasks,)

    def __init__(self, consumer: Any, **options: Any) -> None:
        self._docket = Docket.of(consumer.app)
        self._listener: Listener | None = None
        super().__init__(consumer, **options)

    def include_if(self, consumer: Any) -> bool:
        docket = self._docket
        return (
            docket is not None and docket.config.listen and docket.config.queue in consumer.app.amqp.queues.consume_from
        )

    def start(self, consumer: Any) -> None:
        assert self._docket is not None
        if self._listener is None:
            docket, config = self._docket, self._docket.config
            self._listener = Listener(
                docket.database_url,
                schema=config.schema,
                heard=docket.publisher.wake,
                interval=config.poll_interval,
            )
        self._listener.start()

    def stop(self, consumer: Any) -> None:
        if self._listener is not None:
            self._listener.stop()
