"""The Celery tasks: shells of a few lines over dispatcher and vehicle.

Every option that a host could set globally is set here, on our own tasks: neither reaches the other's.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery import Celery

from docket_celery.errors import InvalidInput
from docket_celery.shift import Shift
from docket_celery.worker.messages import from_message
from docket_celery.worker.publisher import DISPATCH, VEHICLE

if TYPE_CHECKING:
    from docket_celery.worker.setup import Docket

logger = logging.getLogger("docket_celery")

COMMON: dict[str, Any] = {
    "ignore_result": True,
    "store_errors_even_if_ignored": False,
    "track_started": False,
    "serializer": "json",
    "acks_on_failure_or_timeout": True,
    "reject_on_worker_lost": False,
    "max_retries": 0,
    "typing": False,
    "shared": False,
}

TICK_LIMIT = 120.0
"""Seconds after which a tick that hangs is ended."""
STOP_MARGIN = 120.0
"""Seconds that a vehicle task may take beyond its own bounds before the pool ends it."""


def register(app: Celery, docket: Docket) -> None:
    """Adds the tasks to the app. Their queues and limits depend on the configuration and are set at finalization."""

    def dispatch(nudge: bool = False, **_later: Any) -> dict[str, int]:
        """Claims what is due and publishes one lease per free slot; a nudge does so out of turn."""
        batch = docket.dispatcher.nudge() if nudge else docket.dispatcher.tick()
        return {"leases": len(batch.leases), "poisoned": len(batch.poisoned), "stolen": batch.stolen}

    def vehicle(lease: dict[str, Any], **_later: Any) -> str:
        """Drives the leased run, and then what else is due, for as long as this slot may."""
        try:
            decoded = from_message(lease)
        except InvalidInput as error:
            logger.error("a vehicle message was not a lease: %s", error)
            return "malformed lease"
        return str(Shift(docket.engine, docket.dispatcher, stopping=docket.stopping).work(decoded))

    app.task(dispatch, name=DISPATCH, acks_late=False, expires=3_600.0, **COMMON)
    app.task(vehicle, name=VEHICLE, acks_late=True, **COMMON)


def configure(app: Celery, docket: Docket) -> None:
    """Sets what depends on the configuration: queues and time limits, large and explicit (None would inherit)."""
    config = docket.config
    vehicle_limit = config.vehicle_max_elapsed + config.max_attempt_elapsed + STOP_MARGIN
    for name, queue, limit in ((DISPATCH, config.tick_queue, TICK_LIMIT), (VEHICLE, config.queue, vehicle_limit)):
        task = app.tasks[name]
        task.queue = queue
        task.time_limit = limit
        task.soft_time_limit = limit
        task._exec_options = None
