"""Sends leases, ticks and nudges to the broker, bounded and best effort.

One private, kept producer per process, on a connection of its own with short timeouts: a broker that is down or hangs
costs a caller half a second at most, and the host app's connections and settings stay as they are.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from typing import Any

from celery import Celery, uuid
from kombu.connection import Connection
from kombu.entity import Queue
from kombu.messaging import Producer
from kombu.transport.virtual import Channel as VirtualChannel

from docket_celery.config import Config
from docket_celery.holds import held
from docket_celery.storage.contracts.claims import Lease
from docket_celery.worker.messages import to_message, written_in
from docket_celery.worker.nudges import Nudges
from docket_celery.worker.queues import queue_of

logger = logging.getLogger("docket_celery")

DISPATCH = "docket_celery.dispatch"
VEHICLE = "docket_celery.vehicle"
PRUNE = "docket_celery.prune"

LIMIT = 0.5
"""Seconds that connecting to a broker, or one exchange with it, may take."""
STALE = 86_400.0
"""Seconds after which a message is dropped unread. Where Celery judges that, it holds the sender's clock against the
reader's, so this is more than any clock is wrong by, time zones included. Ticks, nudges and leases that come late are
harmless, and cheap.
"""
ENOUGH = 100
"""Messages in the queue of leases, to which no nudge is added. Either nobody takes them, or no slot is free: a claim is
out for each lease, and whoever takes one goes on to what else is due.
"""
LARGEST = 16
"""Messages that are sent together at most."""
LOOK_EVERY = 10
"""Nudges of a process between two looks at how many wait."""


def bounded_connection(app: Celery) -> Connection:
    """A connection to the app's broker that gives up after `LIMIT`, on each of them where the app names several; the
    host's own keep their settings.
    """
    limits = dict.fromkeys(("socket_timeout", "socket_connect_timeout", "read_timeout", "write_timeout"), LIMIT)
    connection: Connection = app.connection_for_write(connect_timeout=LIMIT, transport_options=limits)
    brokers = max(len(connection.alt), 1)
    once = {"max_retries": brokers - 1, "connect_retries_timeout": brokers * LIMIT}
    connection.transport_options = {**(connection.transport_options or {}), **once}
    return connection


@dataclass(slots=True, kw_only=True, eq=False)
class _Letter:
    """A message to be sent.

    fields    what else Celery's message is to say
    lifetime  seconds after which the broker may drop it
    unless    asked at the last moment; when it says yes the message is left out, and counts as gone
    has_gone  None until it was tried
    """

    task: str
    queue: str
    kwargs: dict[str, Any]
    fields: dict[str, Any]
    lifetime: float = STALE
    unless: Callable[[Producer], bool] = lambda _: False
    has_gone: bool | None = None


def _in_one_exchange(producer: Producer, count: int) -> AbstractContextManager[Any]:
    """Several messages leave together at the end, where transport and version of kombu have a way to do so."""
    if count < 2 or not hasattr(producer, "batch"):
        return nullcontext()
    batch: AbstractContextManager[Any] = producer.batch()  # type: ignore[no-untyped-call]
    return batch


def _channel_to_ask_on(producer: Producer) -> AbstractContextManager[Any]:
    """For one question about a queue. A broker closes the channel when there is no such queue, so it is one for that
    alone; but where kombu makes the channels itself, as for Redis, none is closed for it, and another one means another
    connection.
    """
    channel = producer.channel
    return nullcontext(channel) if isinstance(channel, VirtualChannel) else producer.connection.channel()


def _keep_client(channel: Any) -> None:
    """Lets a channel of Redis, ours alone, make one client for all messages. Kombu makes one for each, which takes half
    as long as all the rest of sending it. A client has nothing of its own but the channel's pool of connections.
    """
    if hasattr(channel, "Client"):
        channel.Client = cache(channel.Client)


class Publisher:
    """Publishes for one app. Implements `Launch` and `Waker`."""

    def __init__(self, app: Celery, config: Config, *, monotonic: Callable[[], float]) -> None:
        self._app = app
        self._config = config
        self._monotonic = monotonic
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._waiting: deque[_Letter] = deque()
        self._producer: Producer | None = None
        self._queues: dict[str, Queue] = {}
        self._unseen = LOOK_EVERY
        self._enough = False
        self._nudges = Nudges(self.nudge, monotonic=self._monotonic)

    def __call__(self, leases: Sequence[Lease]) -> int:
        """Publishes leases in order over one producer, some of them together; how many went out.

        Only the broker drops an old one, if it can. A date for Celery to judge would be written and read for each run,
        while a lease is worth what its redemption says.
        """
        gone = 0
        for first in range(0, len(leases), LARGEST):
            letters = [self._letter_of(lease) for lease in leases[first : first + LARGEST]]
            self._send(letters)
            gone += sum(1 for _ in takewhile(lambda letter: letter.has_gone, letters))
            if gone < first + len(letters):
                break
        return gone

    def _letter_of(self, lease: Lease) -> _Letter:
        return _Letter(
            task=VEHICLE,
            queue=self._config.queue,
            kwargs={"lease": to_message(lease)},
            lifetime=max(STALE, 10 * self._config.orphan_ttl),
            fields={
                "shadow": f"{VEHICLE}[{lease.graph_id}]",
                "argsrepr": "()",
                "kwargsrepr": f"graph={lease.graph_id} run={lease.run_id} attempt={lease.claim_attempt}",
            },
        )

    def wake(self, *, after: float = 0.0) -> None:
        """Nudges the fleet, together with whoever else asks for it at the time. Never raises.

        A nudge in the future is kept by a thread of this process, never by a message with a countdown: what it is for
        is in the database, and the tick finds it anyway.
        """
        self._own_process()
        if after <= self._config.poll_interval:
            self._nudges.ask(after=after)

    def flush(self) -> None:
        """Sends at once the nudge that is set for later, if there is one."""
        self._own_process()
        self._nudges.flush()

    def tick(self, task: str = DISPATCH) -> bool:
        """Sends what beat would send: a tick, or a time of pruning. False when it did not go out."""
        letter = _Letter(task=task, queue=self._config.tick_queue, kwargs={}, fields={"expires": STALE})
        self._send([letter])
        return bool(letter.has_gone)

    def nudge(self) -> None:
        """Sends a nudge at once, whoever else asks: a vehicle message without a lease. The slot that takes it claims
        for the fleet, and drives one of the runs without a second message. Never raises.

        Like a lease it is dropped by the broker or not at all: there are few, and one that is late costs a scan.
        """
        letter = _Letter(
            task=VEHICLE,
            queue=self._config.queue,
            kwargs={},
            unless=lambda producer: self._enough and self._enough_wait(producer),
            fields={"argsrepr": "()", "kwargsrepr": "nudge"},
        )
        self._send([letter])
        if letter.has_gone and not self._enough:
            self._look_now_and_then()

    def _look_now_and_then(self) -> None:
        """Finds out whether the next nudge is one too many. After the nudge: a look takes longer than sending one."""
        with held(), self._lock:
            self._unseen -= 1
            if self._unseen > 0 or self._producer is None:
                return
            try:
                self._enough_wait(self._producer)
            except Exception as error:
                self._drop_producer()
                logger.debug("could not look at queue %s: %s", self._config.queue, error)

    def _enough_wait(self, producer: Producer) -> bool:
        """Whether nobody takes the nudges: in a night without workers they would fill the broker. Looks now, and is to
        look each time while there are enough."""
        self._unseen = LOOK_EVERY
        try:
            with _channel_to_ask_on(producer) as channel:
                waiting = int(channel.queue_declare(queue=self._config.queue, passive=True).message_count)
        except producer.connection.channel_errors:
            waiting = 0  # There is no such queue yet.
        self._enough = waiting >= ENOUGH
        return self._enough

    def _send(self, letters: Sequence[_Letter]) -> None:
        """Sends messages in order, and sees to each of them unless one before it did not go out.

        Threads take turns. Who has the turn sends what others wait to send as well.
        """
        self._own_process()
        with held():
            self._waiting.extend(letters)
            try:
                with self._lock:
                    self._withdraw(letters)
                    own = [letter for letter in letters if letter.has_gone is None]
                    if own and not any(letter.has_gone is False for letter in letters):
                        self._send_all([*own, *self._company(LARGEST - len(own))])
            finally:
                self._withdraw(letters)

    def _company(self, most: int) -> list[_Letter]:
        """Those of others that go along."""
        return [self._waiting.popleft() for _ in range(min(len(self._waiting), most))]

    def _withdraw(self, letters: Sequence[_Letter]) -> None:
        for letter in letters:
            with suppress(ValueError):
                self._waiting.remove(letter)

    def _send_all(self, letters: Sequence[_Letter]) -> None:
        """Whether a part of them has gone out cannot always be told, and then none of them counts as gone: a message
        that comes nevertheless is harmless.
        """
        try:
            producer = self._kept_producer()
            due = [letter for letter in letters if not letter.unless(producer)]
            with _in_one_exchange(producer, len(due)):
                for letter in due:
                    self._post(producer, letter)
            gone = True
        except Exception as error:
            self._drop_producer()
            gone = False
            for task, queue in dict.fromkeys((letter.task, letter.queue) for letter in letters):
                logger.warning("could not publish %s to queue %s: %s: %s", task, queue, type(error).__name__, error)
        for letter in letters:
            letter.has_gone = gone

    def _post(self, producer: Producer, letter: _Letter) -> None:
        """One message of Celery's own making, which stands for itself: it is nobody's child, and is routed by nothing
        but its queue.
        """
        amqp = self._app.amqp
        message = amqp.create_task_message(
            uuid(),
            letter.task,
            kwargs=letter.kwargs,
            ignore_result=True,
            # Spelled out, so that the worker's own limits hold.
            time_limit=None,
            soft_time_limit=None,
            create_sent_event=bool(self._app.conf.task_send_sent_event),
            **letter.fields,
        )
        amqp.send_task_message(
            producer,
            letter.task,
            message,
            queue=self._bound_queue(producer, letter.queue),
            retry=False,
            serializer=written_in(self._app.conf.task_serializer),
            delivery_mode=2,
            expiration=letter.lifetime,
        )

    def _kept_producer(self) -> Producer:
        if self._producer is None:
            self._producer = self._app.amqp.Producer(bounded_connection(self._app), auto_declare=False)
            _keep_client(self._producer.channel)
        return self._producer

    def _bound_queue(self, producer: Producer, name: str) -> Queue:
        """The queue as the producer's channel knows it: kombu would bind a copy of it for each message."""
        if name not in self._queues:
            self._queues[name] = queue_of(self._app, name)(producer.channel)
        return self._queues[name]

    def _drop_producer(self) -> None:
        producer, self._producer, self._queues = self._producer, None, {}
        if producer is not None:
            try:
                producer.connection.collect()
            except Exception:
                logger.debug("closing a broken broker connection failed", exc_info=True)

    def _own_process(self) -> None:
        """A forked child starts afresh: the parent's socket is not its own."""
        if os.getpid() != self._pid:
            self._reset()
