"""Docket's two queues as the workers of an app declare them, also where the app lets no queue be missing.

The host's settings stay as they are, and what it says itself of a queue of that name holds.
"""

from __future__ import annotations

from celery import Celery
from kombu.entity import Queue

from docket_celery.config import Config


def queue_of(app: Celery, name: str) -> Queue:
    """The queue of that name: the host's own, or what Celery would make of a missing one."""
    queues = app.amqp.queues
    queue: Queue = queues[name] if name in queues else queues.new_missing(name)
    return queue


def make_known(app: Celery, config: Config) -> None:
    """Lets the app route to docket's queues by name, and `worker -Q` choose them. Nothing consumes them for that."""
    for name in (config.queue, config.tick_queue):
        app.amqp.queues.add(queue_of(app, name))
