"""What a worker checks and prepares before its pool forks: options, node modules, schema, tick queue, stop flag."""

from __future__ import annotations

import logging
from typing import Any

from billiard import get_start_method
from celery import bootsteps
from celery.concurrency import prefork
from celery.signals import worker_shutting_down

from docket_celery.errors import ConfigError, SchemaMismatch, StoreUnavailable
from docket_celery.worker.nodes import AppResolver
from docket_celery.worker.setup import Docket

logger = logging.getLogger("docket_celery")


class Prepare(bootsteps.Step):  # type: ignore[misc]
    """Runs once in the worker's parent process; what is wrong ends the start with a message instead of a trace."""

    def __init__(self, worker: Any, **options: Any) -> None:
        super().__init__(worker, **options)
        docket = Docket.of(worker.app)
        if docket is None:
            return
        try:
            self._prepare(worker, docket)
        except (ConfigError, SchemaMismatch) as error:
            raise SystemExit(f"docket_celery: {error}") from error
        worker_shutting_down.connect(docket.stopping_now, weak=False, dispatch_uid=f"docket-{id(docket)}")

    def _prepare(self, worker: Any, docket: Docket) -> None:
        queues = worker.app.amqp.queues
        if docket.config.queue in queues.consume_from:
            if _spawns(worker):
                raise ConfigError(
                    "this prefork pool would spawn its processes, and a spawned one does not know docket's tasks: set "
                    "worker_pool_start_method to 'fork', or choose --pool threads, gevent or solo"
                )
            queues.select_add(docket.config.tick_queue)
        else:
            logger.info("this worker takes no leases: it does not consume the queue %r (-Q)", docket.config.queue)
        AppResolver(worker.app, docket.config.node_modules).load()
        try:
            docket.check_schema()
        except StoreUnavailable as error:
            logger.warning("starting without the database: %s", error)


def _spawns(worker: Any) -> bool:
    """Whether a prefork pool starts its children afresh: by Celery's option, or as the platform's default."""
    forks = getattr(worker, "pool_start_method", "fork") == "fork" and get_start_method() == "fork"
    return issubclass(worker.pool_cls, prefork.TaskPool) and not forks
