"""What a worker checks and prepares before its pool forks: options, node modules, schema, tick queue, stop flag, and
the memory in which its processes show what they hold.
"""

from __future__ import annotations

import logging
from typing import Any

from billiard import get_start_method
from celery import bootsteps
from celery.concurrency import prefork
from celery.signals import worker_shutting_down
from celery.worker.components import Pool

from docket_celery.errors import ConfigError, SchemaMismatch, StoreUnavailable
from docket_celery.renewal import StandIn
from docket_celery.worker.capacity import slots_of
from docket_celery.worker.messages import is_accepted, written_in
from docket_celery.worker.nodes import AppResolver
from docket_celery.worker.processes import is_at_work
from docket_celery.worker.queues import queue_of
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
            conf = worker.app.conf
            serializer = written_in(conf.task_serializer)
            if not is_accepted(conf.accept_content, serializer):
                raise ConfigError(
                    f"accept_content is {list(conf.accept_content)!r}: this worker would drop docket's messages "
                    f"unread; add {serializer!r}, which they are written in"
                )
            queues.select_add(queue_of(worker.app, docket.config.tick_queue))
        else:
            logger.info("this worker takes no leases: it does not consume the queue %r (-Q)", docket.config.queue)
        AppResolver(worker.app, docket.config.node_modules).load()
        try:
            docket.check_schema()
        except StoreUnavailable as error:
            logger.warning("starting without the database: %s", error)


class TellVehicles(bootsteps.StartStopStep):  # type: ignore[misc]
    """Has vehicles leave in good order whatever stops the worker: remote control, a hangup and an error of its own send
    no signal that Docket could receive. Stopped after the consumer, and before the pool, which waits for its tasks.
    """

    requires = (Pool,)

    def include_if(self, worker: Any) -> bool:
        return Docket.of(worker.app) is not None

    def start(self, worker: Any) -> None:
        docket = Docket.of(worker.app)
        assert docket is not None
        docket.stopping.lower()

    def stop(self, worker: Any) -> None:
        docket = Docket.of(worker.app)
        assert docket is not None
        docket.stopping_now()


class StandInForPool(bootsteps.StartStopStep):  # type: ignore[misc]
    """Renews in the place of pool processes that do not get to it: prefork only, elsewhere there is no second process.

    It has no stop: tasks still run when steps are stopped, and renewal is to end last.
    """

    requires = (Pool,)

    def include_if(self, worker: Any) -> bool:
        docket = Docket.of(worker.app)
        return (
            docket is not None
            and docket.config.lease_renewal
            and docket.config.queue in worker.app.amqp.queues.consume_from
            and issubclass(worker.pool_cls, prefork.TaskPool)
        )

    def create(self, worker: Any) -> None:
        """Before the first fork. The engine too: a fork must not meet another thread in the middle of building it."""
        docket = Docket.of(worker.app)
        assert docket is not None
        self._stand_in = StandIn(
            docket.engine.storage.runs,
            docket.pool_ledger.share(slots_of(worker)),
            is_at_work=is_at_work,
            orphan_ttl=docket.config.orphan_ttl,
            monotonic=docket.engine.clock.monotonic,
        )

    def start(self, worker: Any) -> None:
        self._stand_in.start()


def _spawns(worker: Any) -> bool:
    """Whether a prefork pool starts its children afresh: by Celery's option, or as the platform's default."""
    forks = getattr(worker, "pool_start_method", "fork") == "fork" and get_start_method() == "fork"
    return issubclass(worker.pool_cls, prefork.TaskPool) and not forks
