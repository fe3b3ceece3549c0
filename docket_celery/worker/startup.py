"""What a worker checks and prepares before its pool forks: options, schema, the tick queue, the stop flag."""

from __future__ import annotations

import logging
from typing import Any

from celery import bootsteps
from celery.signals import worker_shutting_down

from docket_celery.errors import SchemaMismatch, StoreUnavailable
from docket_celery.worker.setup import Docket

logger = logging.getLogger("docket_celery")


class Prepare(bootsteps.Step):  # type: ignore[misc]
    """Runs once in the worker's parent process; raising here ends the start with the message."""

    def __init__(self, worker: Any, **options: Any) -> None:
        super().__init__(worker, **options)
        docket = Docket.of(worker.app)
        if docket is None:
            return
        queues = worker.app.amqp.queues
        if docket.config.queue in queues.consume_from:
            queues.select_add(docket.config.tick_queue)
        try:
            docket.check_schema()
        except SchemaMismatch as error:
            raise SystemExit(f"docket_celery: {error}") from error
        except StoreUnavailable as error:
            logger.warning("starting without the database: %s", error)
        worker_shutting_down.connect(docket.stopping_now, weak=False, dispatch_uid=f"docket-{id(docket)}")
