"""Docket's two queues as the workers of an app declare them, also where the app lets no queue be missing.

The host's settings stay as they are, and what it says itself of a queue of that name holds.
"""

from __future__ import annotations

from celery import Celery
from kombu.entity import Queue

from docket_celery.config import Config


def queue_of(app: Celery, name: str) -> Queue:
    """The queue of that name: the host's own, or what Celery would make of a missing one, arguments and all: a broker
    refuses whoever declares one differently.
    """
    queues = app.amqp.queues
    known = queues if name in queues else app.amqp.Queues([queues.new_missing(name)])
    queue: Queue = known[name]
    return queue


def address_of(queue: Queue) -> dict[str, str]:
    """The exchange and routing key of a message for this queue, in the words of `apply_async`.

    To be said with each message: what is left open, a route or an annotation of the host fills in for all of its tasks.
    """
    if queue.exchange.type == "direct":
        return {"exchange": "", "routing_key": queue.name}  # Straight to the queue, declared or not: as Celery does it.
    return {"exchange": queue.exchange.name, "routing_key": queue.routing_key}


def make_known(app: Celery, config: Config) -> None:
    """Lets the app route to docket's queues by name, and `worker -Q` choose them. Nothing consumes them for that."""
    for name in (config.queue, config.tick_queue):
        app.amqp.queues.add(queue_of(app, name))
