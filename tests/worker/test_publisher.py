"""What goes to the broker: leases and nudges, through a producer of our own, bounded, and never raising."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery.signals import after_task_publish, before_task_publish, worker_process_shutdown
from kombu import Producer, Queue
from kombu.serialization import register, unregister
from kombu.transport.virtual import Channel
from redis import Connection, Redis
from support.apps import a_docket
from support.clock import eventually, within

from docket_celery import Docket
from docket_celery.embedded.redis import EmbeddedRedis
from docket_celery.storage.contracts.claims import Lease
from docket_celery.worker import nudges
from docket_celery.worker import publisher as publishing
from docket_celery.worker.messages import to_message
from docket_celery.worker.publisher import DISPATCH, ENOUGH, LARGEST, LOOK_EVERY, VEHICLE, Publisher

DATABASE = "postgresql://127.0.0.1:9/never-asked"


def _lease(run_id: str = "run-1") -> Lease:
    return Lease(
        run_id=run_id,
        tenant=None,
        graph_id="order",
        graph_hash="a" * 64,
        checkpoint_seq=1,
        claim_token="token",
        claimed_at=datetime(2026, 11, 1, tzinfo=UTC),
        claim_attempt=1,
        orphan_ttl=timedelta(seconds=60),
    )


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRedis]:
    directory: Path = tmp_path_factory.mktemp("redis")
    with EmbeddedRedis.start(directory) as server:
        yield server


@pytest.fixture
def docket(redis: EmbeddedRedis) -> Iterator[Docket]:
    """Over a broker that is well, and has time to answer."""
    docket = a_docket(DATABASE, broker=redis.url())
    with docket.app.connection_for_write() as connection:
        connection.channel().client.flushall()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(publishing, "LIMIT", 30.0)
        yield docket


def _received(docket: Docket, queue: str) -> list[Any]:
    """Takes all messages from a queue."""
    messages: list[Any] = []
    with docket.app.connection_for_read() as connection, connection.SimpleQueue(queue) as simple:
        try:
            while True:
                messages.append(simple.get(block=False))
                messages[-1].ack()
        except simple.Empty:
            return messages


def test_leases_go_out_in_order_to_the_queue_of_leases(docket: Docket) -> None:
    leases = [_lease(f"run-{number}") for number in range(3)]
    assert docket.publisher(leases) == 3
    messages = _received(docket, "docket")
    assert [message.headers["task"] for message in messages] == [VEHICLE] * 3
    assert [message.payload[1] for message in messages] == [{"lease": to_message(lease)} for lease in leases]
    assert _received(docket, "docket.ticks") == []


@pytest.fixture
def exchanges(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many messages each exchange with the broker has carried."""
    counts: list[int] = []
    in_one = publishing._in_one_exchange
    monkeypatch.setattr(publishing, "_in_one_exchange", lambda by, count: (counts.append(count), in_one(by, count))[1])
    return counts


def test_the_leases_of_a_scan_leave_in_few_exchanges(docket: Docket, exchanges: list[int]) -> None:
    names = [f"run-{number}" for number in range(2 * LARGEST + 1)]
    assert docket.publisher([_lease(name) for name in names]) == len(names)
    assert exchanges == [LARGEST, LARGEST, 1]
    assert [message.payload[1]["lease"]["run_id"] for message in _received(docket, "docket")] == names


@pytest.mark.parametrize(("failing", "gone"), [(0, 0), (5, 0), (LARGEST, LARGEST), (2 * LARGEST + 2, 2 * LARGEST)])
def test_of_many_leases_those_count_that_went_out_before_the_first_that_did_not(
    docket: Docket, monkeypatch: pytest.MonkeyPatch, failing: int, gone: int
) -> None:
    post = docket.publisher._post

    def post_or_fail(producer: Any, letter: Any) -> None:
        if letter.kwargs["lease"]["run_id"] == f"run-{failing}":
            raise OSError("the broker is gone")
        post(producer, letter)

    monkeypatch.setattr(docket.publisher, "_post", post_or_fail)
    names = [f"run-{number}" for number in range(3 * LARGEST)]
    assert docket.publisher([_lease(name) for name in names]) == gone
    assert [message.payload[1]["lease"]["run_id"] for message in _received(docket, "docket")][:gone] == names[:gone]


@pytest.fixture
def waiting(docket: Docket, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[list[Future[int]], threading.Event]]:
    """Three threads that wait to publish while a fourth is held up in the middle of it, until the event is set."""
    publisher, gate, begun = docket.publisher, threading.Event(), threading.Event()
    send_all = publisher._send_all

    def held_up(letters: Any) -> None:
        if not begun.is_set():
            begun.set()
            assert gate.wait(60)
        send_all(letters)

    monkeypatch.setattr(publisher, "_send_all", held_up)
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(publisher, [_lease("run-0")])]
        assert begun.wait(60)
        for number in range(1, 4):
            futures.append(pool.submit(publisher, [_lease(f"run-{number}")]))
            eventually(lambda number=number: len(publisher._waiting) == number)  # type: ignore[misc]
        try:
            yield futures, gate
        finally:
            gate.set()


def test_leases_that_threads_publish_while_another_does_go_out_together(
    docket: Docket, waiting: tuple[list[Future[int]], threading.Event], exchanges: list[int]
) -> None:
    futures, gate = waiting
    gate.set()
    assert [future.result(60) for future in futures] == [1, 1, 1, 1]
    assert sum(exchanges) == 4
    assert len(exchanges) < 4
    messages = _received(docket, "docket")
    assert [message.payload[1]["lease"]["run_id"] for message in messages] == [f"run-{number}" for number in range(4)]
    assert len({message.headers["id"] for message in messages}) == 4


def test_of_leases_that_cannot_go_out_together_none_counts_as_gone(
    docket: Docket, waiting: tuple[list[Future[int]], threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    futures, gate = waiting

    def refuse(*_: Any) -> None:
        raise OSError("the broker is gone")

    monkeypatch.setattr(docket.publisher, "_post", refuse)
    gate.set()
    assert [future.result(60) for future in futures] == [0, 0, 0, 0]
    monkeypatch.undo()
    assert docket.publisher([_lease("later")]) == 1
    assert [message.payload[1]["lease"]["run_id"] for message in _received(docket, "docket")] == ["later"]


def test_those_whose_sender_is_ended_in_the_middle_send_their_own(
    docket: Docket, waiting: tuple[list[Future[int]], threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    futures, gate = waiting
    post = docket.publisher._post
    posted: list[str] = []

    def end_the_second(producer: Any, letter: Any) -> None:
        post(producer, letter)
        posted.append(letter.kwargs["lease"]["run_id"])
        if len(posted) == 2:
            raise SystemExit(1)

    monkeypatch.setattr(docket.publisher, "_post", end_the_second)
    gate.set()
    ended = [isinstance(future.exception(60), SystemExit) for future in futures]
    assert sorted(ended) == [False, False, False, True]
    gone = [f"run-{number}" for number, future in enumerate(futures) if not ended[number] and future.result(60) == 1]
    assert len(gone) == 3
    received = [message.payload[1]["lease"]["run_id"] for message in _received(docket, "docket")]
    assert set(gone) <= set(received)


def test_where_nobody_can_batch_messages_of_several_threads_go_one_by_one(
    docket: Docket, waiting: tuple[list[Future[int]], threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with the oldest versions of kombu."""
    futures, gate = waiting
    monkeypatch.delattr(Producer, "batch", raising=False)
    gate.set()
    assert [future.result(60) for future in futures] == [1, 1, 1, 1]
    assert len(_received(docket, "docket")) == 4


def test_a_message_is_json_without_countdown_and_shows_no_token(docket: Docket) -> None:
    docket.publisher([_lease()])
    (message,) = _received(docket, "docket")
    assert message.content_type == "application/json"
    assert message.headers["eta"] is None
    assert message.headers["ignore_result"] is True
    assert message.headers["shadow"] == f"{VEHICLE}[order]"
    assert "run=run-1" in message.headers["kwargsrepr"]
    assert "token" not in message.headers["kwargsrepr"] + message.headers["argsrepr"]


def test_a_lease_has_the_form_that_celery_itself_gives_to_a_message(docket: Docket) -> None:
    docket.publisher([_lease()])
    docket.app.send_task(VEHICLE, kwargs={"lease": to_message(_lease())}, queue="docket", ignore_result=True)
    ours, theirs = _received(docket, "docket")
    assert ours.headers.keys() == theirs.headers.keys()
    assert ours.properties.keys() - {"expiration"} == theirs.properties.keys()
    assert ours.payload == theirs.payload


def test_a_lease_goes_stale_by_the_brokers_clock_alone(docket: Docket) -> None:
    docket.publisher([_lease()])
    (message,) = _received(docket, "docket")
    assert message.headers["expires"] is None
    assert int(message.properties["expiration"]) >= 24 * 3_600 * 1_000


def test_a_message_is_not_the_child_of_the_task_that_sends_it(docket: Docket) -> None:
    def sender() -> None:
        docket.publisher([_lease()])

    docket.app.task(sender, name="tests.sender").apply(throw=True)
    (message,) = _received(docket, "docket")
    assert message.headers["parent_id"] is None
    assert message.headers["root_id"] == message.headers["id"]


def test_the_hosts_receivers_see_each_message_before_and_after_it_is_sent(docket: Docket) -> None:
    seen: list[tuple[str, str, Any]] = []

    def before(sender: str, headers: dict[str, Any], **_: Any) -> None:
        headers["traced"] = "yes"
        seen.append(("before", sender, headers["id"]))

    def after(sender: str, headers: dict[str, Any], **_: Any) -> None:
        seen.append(("after", sender, headers["id"]))

    before_task_publish.connect(before)
    after_task_publish.connect(after)
    try:
        docket.publisher([_lease()])
    finally:
        before_task_publish.disconnect(before)
        after_task_publish.disconnect(after)
    (message,) = _received(docket, "docket")
    assert seen == [("before", VEHICLE, message.headers["id"]), ("after", VEHICLE, message.headers["id"])]
    assert message.headers["traced"] == "yes"


def test_a_host_that_wants_sent_events_gets_them_of_leases_too(redis: EmbeddedRedis) -> None:
    docket = a_docket(DATABASE, broker=redis.url(), task_send_sent_event=True)
    events: list[dict[str, Any]] = []
    with docket.app.connection_for_read() as connection:
        receiver = docket.app.events.Receiver(connection, handlers={"task-sent": events.append})
        with receiver.consumer_context() as (consumed, _channel, _consumers):
            consumed.drain_events(timeout=10.0)  # Subscribes, and hears that it has.
            docket.publisher([_lease()])
            while not events:
                consumed.drain_events(timeout=10.0)
    assert events[0]["name"] == VEHICLE
    assert events[0]["kwargs"] == "graph=order run=run-1 attempt=1"
    assert events[0]["queue"] == "docket"


def test_no_message_carries_the_senders_time_limits(docket: Docket) -> None:
    docket.publisher([_lease()])
    docket.publisher.wake()
    docket.publisher.tick()
    messages = [*_received(docket, "docket"), *_received(docket, "docket.ticks")]
    assert [list(message.headers["timelimit"]) for message in messages] == [[None, None]] * 3


def test_a_nudge_is_a_vehicle_message_that_brings_no_lease(docket: Docket) -> None:
    docket.publisher.wake()
    (message,) = _received(docket, "docket")
    assert (message.headers["task"], message.payload[:2]) == (VEHICLE, [[], {}])
    assert (message.headers["argsrepr"], message.headers["kwargsrepr"]) == ("()", "nudge")
    assert message.headers["eta"] is None
    assert _received(docket, "docket.ticks") == []


def test_a_nudge_goes_stale_by_the_brokers_clock_alone(docket: Docket) -> None:
    docket.publisher.wake()
    (message,) = _received(docket, "docket")
    assert message.headers["expires"] is None
    assert int(message.properties["expiration"]) >= 24 * 3_600 * 1_000


def test_nudges_that_nobody_takes_stop_at_a_bound_and_go_on_when_somebody_does(docket: Docket) -> None:
    publisher = docket.publisher
    client = docket.app.connection_for_write().channel().client
    for _ in range(3 * ENOUGH):
        publisher.nudge()
    assert ENOUGH <= client.llen("docket") <= ENOUGH + LOOK_EVERY
    client.delete("docket")
    publisher.nudge()
    assert len(_received(docket, "docket")) == 1


def _made(kind: type[Any], patched: pytest.MonkeyPatch) -> list[Any]:
    """What is made of a class from now on."""
    begin, made = kind.__init__, list[Any]()

    def noted(self: Any, *arguments: Any, **options: Any) -> None:
        made.append(self)
        begin(self, *arguments, **options)

    patched.setattr(kind, "__init__", noted)
    return made


def test_one_client_of_redis_serves_all_messages(docket: Docket, monkeypatch: pytest.MonkeyPatch) -> None:
    docket.publisher.nudge()
    made = _made(Redis, monkeypatch)
    docket.publisher.nudge()
    assert docket.publisher([_lease()]) == 1
    assert made == []
    monkeypatch.undo()
    assert len(_received(docket, "docket")) == 3


def test_a_look_at_how_many_wait_needs_no_further_connection(docket: Docket, monkeypatch: pytest.MonkeyPatch) -> None:
    docket.publisher.nudge()
    opened = _made(Connection, monkeypatch)
    for _ in range(2 * LOOK_EVERY):
        docket.publisher.nudge()
    assert opened == []


def test_a_nudge_goes_out_before_a_look_at_how_many_wait(docket: Docket, monkeypatch: pytest.MonkeyPatch) -> None:
    client = docket.app.connection_for_write().channel().client
    declare = Channel.queue_declare
    asked: list[int] = []
    seen: list[tuple[int, int]] = []

    def look(self: Channel, queue: str, passive: bool = False, **options: Any) -> Any:
        if passive:
            seen.append((len(asked), client.llen("docket")))
        return declare(self, queue=queue, passive=passive, **options)

    monkeypatch.setattr(Channel, "queue_declare", look)
    for number in range(2 * LOOK_EVERY):
        asked.append(number)
        docket.publisher.nudge()
    assert seen == [(LOOK_EVERY, LOOK_EVERY), (2 * LOOK_EVERY, 2 * LOOK_EVERY)]


def test_no_nudge_is_added_to_many_leases_that_wait(docket: Docket) -> None:
    publisher = docket.publisher
    assert publisher([_lease(f"run-{number}") for number in range(ENOUGH)]) == ENOUGH
    for _ in range(3 * LOOK_EVERY):
        publisher.nudge()
    without_lease = [message for message in _received(docket, "docket") if message.payload[1] == {}]
    assert len(without_lease) <= LOOK_EVERY


def test_nudges_of_one_moment_are_one_message_at_once_and_one_at_the_end(docket: Docket) -> None:
    now = [0.0]
    docket.publisher = Publisher(docket.app, docket.config, monotonic=lambda: now[0])
    for _ in range(20):
        docket.publisher.wake()
    now[0] = nudges.SHORTEST
    with docket.app.connection_for_read() as connection, connection.SimpleQueue("docket") as simple:
        for _ in range(2):
            simple.get(timeout=10.0).ack()
    assert _received(docket, "docket") == []


def test_a_pool_process_that_ends_sends_the_nudge_that_it_has_set_for_later(
    docket: Docket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nudges, "SHORTEST", 3_600.0)
    for _ in range(2):
        docket.publisher.wake()
    assert len(_received(docket, "docket")) == 1
    for _ in range(2):
        worker_process_shutdown.send(sender=None, pid=1, exitcode=0)
    assert len(_received(docket, "docket")) == 1


def test_a_tick_is_what_beat_would_send(docket: Docket) -> None:
    assert docket.publisher.tick()
    (message,) = _received(docket, "docket.ticks")
    assert (message.headers["task"], message.payload[:2]) == (DISPATCH, [[], {}])


def test_a_nudge_beyond_the_next_tick_is_left_to_it(docket: Docket) -> None:
    docket.publisher.wake(after=60.0)
    assert _received(docket, "docket") == []


def test_host_settings_for_messages_do_not_reach_ours(redis: EmbeddedRedis) -> None:
    docket = a_docket(
        DATABASE,
        broker=redis.url(),
        task_serializer="pickle",
        task_default_queue="elsewhere",
        task_create_missing_queues=False,
        task_queues=[Queue("hijacked")],
        task_routes={"docket_celery.*": {"queue": "hijacked"}},
    )
    assert docket.publisher([_lease()]) == 1
    (message,) = _received(docket, "docket")
    assert message.content_type == "application/json"


def test_an_app_that_signs_its_messages_has_ours_signed_too(redis: EmbeddedRedis) -> None:
    """What `app.setup_security()` makes of the name needs a key; here it only shows that it was asked."""
    register("auth", lambda body: f"signed {json.dumps(body)}", json.loads, "application/data", "utf-8")
    try:
        docket = a_docket(DATABASE, broker=redis.url(), task_serializer="auth", accept_content=["auth"])
        assert docket.publisher([_lease()]) == 1
        docket.publisher.nudge()
        docket.publisher.tick()
        messages = [*_received(docket, "docket"), *_received(docket, "docket.ticks")]
        assert [message.content_type for message in messages] == ["application/data"] * 3
        assert all(message.body.startswith(b"signed ") for message in messages)
    finally:
        unregister("auth")


@pytest.mark.parametrize("fault", ["refused", "half-open"])
@pytest.mark.parametrize("named", [";".join, list], ids=["in one text", "in a list"])
def test_of_several_brokers_the_first_that_is_well_is_taken(
    redis: EmbeddedRedis, tmp_path: Path, fault: str, named: Callable[[list[str]], Any]
) -> None:
    with EmbeddedRedis.start(tmp_path / "redis") as first:
        docket = a_docket(DATABASE, broker_url=named([first.url(), redis.url()]))
        first.stop() if fault == "refused" else first.freeze()
        with within(4.0):
            assert docket.publisher([_lease(), _lease()]) == 2
            docket.publisher.nudge()
        first.thaw() if fault == "half-open" else first.restart()
    assert len(_received(a_docket(DATABASE, broker=redis.url()), "docket")) == 3


@pytest.mark.parametrize("fault", ["refused", "half-open"])
def test_a_broker_that_is_away_costs_little_time_and_raises_nothing(
    tmp_path: Path, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    with EmbeddedRedis.start(tmp_path / "redis") as server:
        docket = a_docket(DATABASE, broker=server.url())
        assert docket.publisher([_lease()]) == 1
        server.stop() if fault == "refused" else server.freeze()
        for _ in range(2):
            with within(4.0):
                assert docket.publisher([_lease(), _lease()]) == 0
                docket.publisher.wake()
        server.restart() if fault == "refused" else server.thaw()
        assert docket.publisher([_lease()]) == 1
    assert f"could not publish {VEHICLE} to queue docket" in caplog.text


def test_the_connections_of_the_host_keep_their_settings(redis: EmbeddedRedis) -> None:
    docket = a_docket(DATABASE, broker=redis.url(), broker_transport_options={"visibility_timeout": 77})
    docket.publisher([_lease()])
    assert docket.app.conf.broker_transport_options == {"visibility_timeout": 77}
    assert docket.app.connection_for_write().transport_options == {"visibility_timeout": 77}
    assert docket.app.connection_for_write().connect_timeout != 0.5
