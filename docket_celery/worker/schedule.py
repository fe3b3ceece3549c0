"""The tasks that somebody has to send again and again, and how beat comes to send them.

The entries are ordinary ones of the app's `beat_schedule`, so that every scheduler keeps them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from celery import Celery

from docket_celery.config import Config
from docket_celery.worker.publisher import DISPATCH, PRUNE
from docket_celery.worker.queues import address_of, queue_of


def periodic(config: Config) -> Mapping[str, int]:
    """The tasks, and every how many seconds each of them is to be sent: by beat or, without one, by workers."""
    every = {DISPATCH: config.poll_interval}
    if config.run_retention is not None or config.event_retention is not None:
        every[PRUNE] = config.prune_interval
    return every


def add_entries(app: Celery, config: Config) -> None:
    """Adds what beat is to send, if it is, to the schedule of a finalized app."""
    _add(app, config, _of_beat(config))


def see_to(service: Any, config: Config) -> None:
    """Has a beat that starts send them, and to their queue, whatever exchange the host's routes and annotations name
    for all tasks. Not before it starts: the queues are made from settings that may still change until then.
    """
    app = service.app
    address = address_of(queue_of(app, config.tick_queue))
    for name in periodic(config):
        for option, value in address.items():
            setattr(app.tasks[name], option, value)
        app.tasks[name]._exec_options = None
    if lost := [name for name in _of_beat(config) if name not in app.conf.beat_schedule]:
        # The host set its schedule after ours was added: in a receiver of `on_after_finalize`, for one.
        _add(app, config, lost)
        service.scheduler.update_from_dict({name: app.conf.beat_schedule[name] for name in lost})


def _of_beat(config: Config) -> Iterable[str]:
    return periodic(config) if config.install_beat and config.tick == "beat" else ()


def _add(app: Celery, config: Config, names: Iterable[str]) -> None:
    every = periodic(config)
    for name in names:
        app.add_periodic_task(float(every[name]), app.tasks[name].s(), name=name, queue=config.tick_queue)
