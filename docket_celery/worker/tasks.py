"""The Celery tasks: shells of a few lines over dispatcher, vehicle and pruner.

Every option that a host could set globally is set here, on our own tasks: neither reaches the other's.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery import Celery
from celery.backends.base import DisabledBackend

from docket_celery.config import Config
from docket_celery.errors import InvalidInput
from docket_celery.pruner import prune, retention
from docket_celery.shift import Shift
from docket_celery.worker.messages import from_message, written_in
from docket_celery.worker.pools import is_pool_child
from docket_celery.worker.publisher import DISPATCH, PRUNE, STALE, VEHICLE
from docket_celery.worker.retirement import retire
from docket_celery.worker.tidying import is_tidied

if TYPE_CHECKING:
    from docket_celery.worker.setup import Docket

logger = logging.getLogger("docket_celery")

COMMON: dict[str, Any] = {
    "ignore_result": True,
    "store_errors_even_if_ignored": False,
    "store_eager_result": False,
    "track_started": False,
    "rate_limit": 0,
    "acks_on_failure_or_timeout": True,
    "acks_on_failure": True,
    "acks_on_timeout": True,
    "reject_on_worker_lost": False,
    "retry_on_worker_lost": False,
    "max_retries": 0,
    "typing": False,
}
"""None would inherit a global setting, and so would 0 for the time limits."""

TICK_LIMIT = 120.0
"""Seconds after which a tick that hangs is ended."""
PRUNE_ELAPSED = 30.0
"""Seconds after which a pruning task begins no further pass; what is left waits for the next one."""
STOP_MARGIN = 120.0
"""Seconds that a vehicle task may take beyond its own bounds before the pool ends it."""


class _Nowhere(DisabledBackend):  # type: ignore[misc]
    """Where the results of our tasks go."""

    def prepare_compression(self, compression: str | None) -> None:
        """Celery would warn that this backend ignores the app's setting, as if it were the app's own."""


def register(app: Celery, docket: Docket) -> None:
    """Adds the tasks to the app. Their queues and limits depend on the configuration and are set at finalization."""

    def dispatch(**_later: Any) -> dict[str, int]:
        """One tick: claims what is due and publishes one lease per free slot."""
        batch = docket.dispatcher.tick()
        return {"leases": len(batch.leases), "poisoned": len(batch.poisoned), "stolen": batch.stolen}

    def vehicle(**message: Any) -> str:
        """Drives the leased run, and then what else is due, for as long as this slot may. Without a lease it is a
        nudge: the slot claims for the fleet, and drives the first of these runs.
        """
        report = _leased(docket, message["lease"]) if "lease" in message else _nudged(docket)
        if is_pool_child() and docket.executor.overdue.count:
            retire(docket.executor.overdue)
        return report

    def prune_old(**_later: Any) -> dict[str, int]:
        """Removes what is past its retention, for a bounded time."""
        clock = docket.engine.clock
        until = clock.monotonic() + PRUNE_ELAPSED
        total = prune(
            docket.engine,
            retention(docket.config),
            go_on=lambda _: clock.monotonic() < until and not docket.stopping(),
        )
        return {"runs": total.runs, "events": total.events}

    for name, function in ((DISPATCH, dispatch), (VEHICLE, vehicle), (PRUNE, prune_old)):
        # Said here, where Celery looks: the class or an annotation of the host's tasks may have them all tried again.
        app.task(function, name=name, shared=False, autoretry_for=())


def _leased(docket: Docket, lease: Any) -> str:
    """What became of a lease, as the task's result tells it."""
    try:
        decoded = from_message(lease)
    except InvalidInput as error:
        logger.error("a vehicle message was not a lease: %s", error)
        return "malformed lease"
    if docket.stopping():
        docket.storage.runs.release_claims([(decoded.run_id, decoded.claim_token)])
        return "given back: this worker is stopping"
    return str(_shift(docket).work(decoded))


def _nudged(docket: Docket) -> str:
    """What became of a nudge. Of many that come at once and in vain, as after a time without workers, the first makes a
    scan, and one more is sent for all the others. One that finds something keeps nobody waiting.
    """
    if docket.stopping():
        docket.publisher.nudge()
        return "passed on: this worker is stopping"
    if wait := docket.nudged.enter():
        docket.publisher.wake(after=wait)
        return "left to the next nudge"
    return str(_shift(docket).answer(found=docket.nudged.shorten))


def _shift(docket: Docket) -> Shift:
    vehicle = docket.app.tasks[VEHICLE]
    return Shift(docket.engine, docket.dispatcher, stopping=docket.stopping, is_tidied=lambda: is_tidied(vehicle))


def configure(app: Celery, docket: Docket) -> None:
    """Sets every option of the tasks. They are bound by now: the host's annotations come first, ours last."""
    nowhere = _Nowhere(app)
    for name, settings in options(docket.config, written_in(app.conf.task_serializer)).items():
        task = app.tasks[name]
        # Celery looks the backend up after each task, and would make the app's own anew for each greenlet.
        task.backend = nowhere
        for option, value in settings.items():
            setattr(task, option, value)
        task._exec_options = None


def options(config: Config, serializer: str) -> dict[str, dict[str, Any]]:
    """The options of each task, by its name."""
    drain = config.vehicle_max_elapsed if config.drain_max_elapsed is None else config.drain_max_elapsed
    longest = config.vehicle_max_elapsed + drain + config.max_attempt_elapsed + STOP_MARGIN
    common = {**COMMON, "serializer": serializer}
    tick = {**common, "queue": config.tick_queue, **_limits(TICK_LIMIT), "acks_late": False, "expires": STALE}
    vehicle = {**common, "queue": config.queue, **_limits(longest), "acks_late": True, "expires": None}
    return {DISPATCH: tick, PRUNE: tick, VEHICLE: vehicle}


def _limits(seconds: float) -> dict[str, float]:
    return {"time_limit": seconds, "soft_time_limit": seconds}
