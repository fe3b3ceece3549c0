"""Where Docket's messages go, whatever a host's routes and annotations name for all of its tasks."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from celery.beat import Scheduler, Service
from celery.signals import beat_init
from kombu import Exchange, Queue
from support.apps import a_docket

from docket_celery import Docket
from docket_celery.worker.publisher import DISPATCH
from docket_celery.worker.queues import address_of, make_known, queue_of

DATABASE = "postgresql://127.0.0.1:9/never-asked"
ELSEWHERE = {"exchange": "media", "routing_key": "media.video"}
HOSTS: dict[str, dict[str, Any]] = {
    "routes": {"task_routes": {"*": {"queue": "other", **ELSEWHERE}}},
    "annotations": {"task_annotations": {"*": ELSEWHERE}},
    "a router": {"task_routes": [lambda name, *args, **options: dict(ELSEWHERE)]},
    "a topic of the host's": {"task_queues": [Queue("docket.ticks", Exchange("topics", "topic"), "ticks.*")]},
    "nothing": {},
}


def _nothing() -> None:
    """A task of the host."""


def _send_as_beat(docket: Docket) -> None:
    """The tick, as a beat that has just started sends it."""
    service = Service(docket.app, scheduler_cls=Scheduler)
    beat_init.send(sender=service)
    scheduler = Scheduler(docket.app, lazy=True)
    scheduler.merge_inplace(docket.app.conf.beat_schedule)
    scheduler.apply_async(scheduler.schedule[DISPATCH], advance=False)


def _received(app: Celery, name: str) -> list[str]:
    """The tasks of the messages that wait in the queue."""
    with app.connection_for_read() as connection:
        queue = queue_of(app, name)(connection.default_channel)
        found = []
        while (message := queue.get(no_ack=True)) is not None:
            found.append(message.headers["task"])
        return found


@pytest.mark.parametrize("settings", HOSTS.values(), ids=HOSTS.keys())
def test_a_tick_of_beat_reaches_its_queue(settings: dict[str, Any]) -> None:
    docket = a_docket(DATABASE, broker="memory://", **settings)
    docket.app.finalize()
    with docket.app.connection_for_write() as connection:
        queue_of(docket.app, "docket.ticks")(connection.default_channel).declare()
    assert _received(docket.app, "docket.ticks") == []
    _send_as_beat(docket)
    assert _received(docket.app, "docket.ticks") == [DISPATCH]


@pytest.mark.parametrize("settings", HOSTS.values(), ids=HOSTS.keys())
def test_what_the_publisher_sends_reaches_its_queue(settings: dict[str, Any]) -> None:
    docket = a_docket(DATABASE, broker="memory://", **settings)
    docket.app.finalize()
    with docket.app.connection_for_write() as connection:
        queue_of(docket.app, "docket.ticks")(connection.default_channel).declare()
    assert docket.publisher.tick()
    assert _received(docket.app, "docket.ticks") == [DISPATCH]


def test_the_hosts_own_tasks_keep_their_address() -> None:
    docket = a_docket(DATABASE, broker="memory://", **HOSTS["annotations"])
    own = docket.app.task(_nothing, name="own", shared=False)
    docket.app.finalize()
    beat_init.send(sender=Service(docket.app, scheduler_cls=Scheduler))
    assert (own.exchange, own.routing_key) == ("media", "media.video")


@pytest.mark.parametrize(
    ("queue", "address"),
    [
        (Queue("docket", Exchange("docket"), "docket"), {"exchange": "", "routing_key": "docket"}),
        (Queue("docket", Exchange("e", "direct"), "k"), {"exchange": "", "routing_key": "docket"}),
        (Queue("docket", Exchange("e", "topic"), "k.#"), {"exchange": "e", "routing_key": "k.#"}),
        (Queue("docket", Exchange("e", "fanout"), ""), {"exchange": "e", "routing_key": ""}),
    ],
)
def test_an_address_leaves_nothing_open(queue: Queue, address: dict[str, str]) -> None:
    assert address_of(queue) == address


@pytest.mark.parametrize(
    "settings",
    [
        {"task_queue_max_priority": 10},
        {"task_create_missing_queue_type": "quorum", "task_default_queue_type": "quorum"},
        {"task_default_exchange": "ours", "task_default_exchange_type": "topic", "task_queue_max_priority": 3},
        {"task_create_missing_queues": False, "task_queue_max_priority": 10},
    ],
)
def test_whoever_sends_declares_the_queue_as_whoever_consumes_it(settings: dict[str, Any]) -> None:
    """RabbitMQ refuses a declaration that differs, and the message with it."""
    docket = a_docket(DATABASE, broker="memory://", **settings)
    as_sender = queue_of(docket.app, docket.config.queue)
    make_known(docket.app, docket.config)
    as_consumer = docket.app.amqp.queues[docket.config.queue]
    assert (as_sender, as_sender.queue_arguments) == (as_consumer, as_consumer.queue_arguments)
    assert (as_consumer.queue_arguments or {}).get("x-max-priority") == settings.get("task_queue_max_priority")
