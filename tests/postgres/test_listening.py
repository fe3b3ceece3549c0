"""LISTEN and NOTIFY: which writes tell, when, and who of several listeners hears."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from support.builders import a_run, an_initial
from support.clock import NOON, eventually, within
from support.relay import relay_to
from support.scene import Scene

from docket_celery.embedded.postgres import EmbeddedPostgres
from docket_celery.errors import StoreUnavailable
from docket_celery.run.document import RunStatus
from docket_celery.storage.contracts.values import SYSTEM, TENANTLESS, Release
from docket_celery.storage.postgres import listener as listening
from docket_celery.storage.postgres import migrate, open_storage
from docket_celery.storage.postgres.listener import Listener, listening_state
from docket_celery.storage.postgres.queries import Queries, channel_of
from docket_celery.testing import FixedJitter, ManualClock

NOW = Release(kind="immediate")
TURN = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"


@pytest.fixture
def telling(postgres_url: str) -> Scene:
    """A store that tells, on the database's own clock."""
    return Scene(open_storage(postgres_url, notify=True), ManualClock(NOON))


class Ear:
    """A session that listens."""

    def __init__(self, session: psycopg.Connection) -> None:
        self._session = session
        self._notices: list[psycopg.Notify] = []
        session.add_notify_handler(self._notices.append)
        session.execute(f"LISTEN {channel_of('docket')}".encode())

    def heard(self) -> int:
        """How many notifications have come since the last call: those of commits before this one are all sent before
        its answer.
        """
        self._session.execute("SELECT")
        count = len(self._notices)
        self._notices.clear()
        return count


@pytest.fixture
def ear(beside: psycopg.Connection) -> Ear:
    return Ear(beside)


# -- which writes tell -------------------------------------------------------------------------------------------------


def _a_mutation(scene: Scene) -> None:
    scene.mutate("run-1", schedule=NOW)


def _a_retry(scene: Scene) -> None:
    scene.runs.retry_poisoned_run(SYSTEM, "run-1")


def _poisoned(scene: Scene) -> None:
    scene.start()
    assert scene.abandon("run-1", scene.hold(), max_claim_abandons=0) == "poisoned"


def _a_release(scene: Scene) -> None:
    scene.runs.release_claim("run-1", scene.hold(), uncounted=True)


def _many(scene: Scene) -> None:
    scene.publish()
    scene.runs.insert_runs(TENANTLESS, [an_initial(a_run(f"run-{n}", at=scene.now)) for n in range(50)])


def _nothing(scene: Scene) -> None:
    return None


@pytest.mark.parametrize(
    ("before", "write"),
    [
        (_nothing, Scene.start),
        (_nothing, _many),
        (Scene.start, _a_mutation),
        (_poisoned, _a_retry),
        (Scene.start, _a_release),
    ],
    ids=["start", "bulk start", "mutation", "retry", "release"],
)
def test_a_write_that_makes_runs_due_at_once_tells_once(
    telling: Scene, ear: Ear, before: Callable[[Scene], Any], write: Callable[[Scene], Any]
) -> None:
    before(telling)
    ear.heard()
    write(telling)
    assert ear.heard() == 1


def test_writes_after_which_nothing_is_due_tell_nobody(telling: Scene, ear: Ear) -> None:
    telling.start("later", schedule=Release(kind="at", at=datetime(2999, 1, 1, tzinfo=UTC)))
    telling.start("done", status=RunStatus.DONE)
    telling.start("waiting", status=RunStatus.WAITING)
    telling.mutate("later", status=RunStatus.CANCELLED)
    assert ear.heard() == 0


def test_a_vehicles_own_commits_and_delayed_releases_tell_nobody(telling: Scene, ear: Ear) -> None:
    telling.start()
    ear.heard()
    telling.commit("run-1", telling.hold(), schedule=NOW)
    lease = telling.lease()
    telling.runs.release_claims([(lease.run_id, lease.claim_token)])
    telling.runs.release_claim("run-1", telling.hold(), delay=timedelta(seconds=30))
    assert ear.heard() == 0


def test_a_start_in_a_callers_transaction_is_told_when_that_commits(
    telling: Scene, ear: Ear, postgres_url: str
) -> None:
    telling.publish()
    with psycopg.connect(postgres_url) as mine:
        telling.runs.insert_run(TENANTLESS, an_initial(a_run("rolled-back", at=telling.now)), connection=mine)
        mine.rollback()
        telling.runs.insert_run(TENANTLESS, an_initial(a_run("run-1", at=telling.now)), connection=mine)
        assert ear.heard() == 0
    assert ear.heard() == 1


def test_nothing_is_told_and_no_statement_knows_of_it_where_listening_is_off(postgres_url: str, ear: Ear) -> None:
    scene = Scene(open_storage(postgres_url), ManualClock(NOON))
    scene.start()
    _a_mutation(scene)
    _a_release(scene)
    assert ear.heard() == 0
    statements = Queries("docket")._numbered.values()
    assert [statement for statement in statements if b"pg_notify" in statement.text] == []


@pytest.fixture
def clogged_url(tmp_path: Path) -> Iterator[str]:
    """A database of a server whose queue of notifications is full: somebody listens and does not end a transaction."""
    with EmbeddedPostgres.start(tmp_path, settings={"max_notify_queue_pages": "64"}) as server:
        url = server.create_database("clogged")
        migrate.upgrade(url)
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute("LISTEN elsewhere")
            connection.execute("BEGIN")
            connection.execute("SELECT")
            with psycopg.connect(server.url(), autocommit=True) as other, suppress(errors.ProgramLimitExceeded):
                while True:
                    other.execute("SELECT pg_notify('elsewhere', repeat('x', 7000))")
            yield url


def test_where_the_server_takes_no_more_notifications_writes_tell_nobody_and_say_so_once(
    clogged_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(open_storage(clogged_url, notify=True), ManualClock(NOON))
    scene.start()
    _a_mutation(scene)
    _a_release(scene)
    scene.runs.insert_runs(TENANTLESS, [an_initial(a_run("run-2", at=scene.now))])
    assert (scene.run("run-1").checkpoint_seq, scene.run("run-2").checkpoint_seq) == (2, 1)
    (said,) = [record.getMessage() for record in caplog.records if record.name == "docket_celery"]
    assert said.startswith("wakes by others wait for the tick: PostgreSQL at 127.0.0.1")
    assert said.endswith("too many notifications in the NOTIFY queue")


def test_where_a_trigger_of_the_hosts_notifies_on_such_a_server_the_write_is_given_up_and_no_value_blamed(
    clogged_url: str,
) -> None:
    with psycopg.connect(clogged_url, autocommit=True) as connection:
        connection.execute(
            "CREATE FUNCTION theirs() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "PERFORM pg_notify('theirs', NEW.id); RETURN NULL; END $$"
        )
        connection.execute("CREATE TRIGGER theirs AFTER INSERT ON docket.runs FOR EACH ROW EXECUTE FUNCTION theirs()")
    for notify in (True, False):
        scene = Scene(open_storage(clogged_url, notify=notify), ManualClock(NOON))
        with pytest.raises(StoreUnavailable, match="too many notifications in the NOTIFY queue"):
            scene.start()


@pytest.mark.parametrize("schema", ["docket", 'We"ird schema', "x" * 63, "Ü"])
def test_every_schema_has_a_channel_that_needs_no_quotes(beside: psycopg.Connection, schema: str) -> None:
    channel = channel_of(schema)
    heard: list[str] = []
    beside.add_notify_handler(lambda notice: heard.append(notice.channel))
    beside.execute(f"LISTEN {channel}".encode())
    beside.execute("SELECT pg_notify(%s, '')", (channel,))
    eventually(lambda: beside.execute("SELECT") and heard)
    assert heard == [channel]
    assert channel_of("docket") == "docket_wake"


# -- who hears ---------------------------------------------------------------------------------------------------------


class Ears:
    """Listeners of one schema, and what each has heard."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.heard: list[str] = []

    def open(self, name: str, url: str, *, interval: float = 0.05) -> Listener:
        listener = Listener(
            url,
            schema="docket",
            heard=lambda: self.heard.append(name),
            interval=interval,
            jitter=FixedJitter(0.0),
        )
        listener.start()
        self._stack.callback(listener.stop)
        return listener

    def have(self, *names: str) -> None:
        eventually(lambda: self.heard == list(names))


@pytest.fixture
def ears(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ears]:
    monkeypatch.setattr(listening, "FIRST_PAUSE", 0.05)
    with ExitStack() as stack:
        yield Ears(stack)


def notify(connection: psycopg.Connection) -> None:
    connection.execute("NOTIFY docket_wake")


def test_a_listener_wakes_when_it_begins_and_at_each_notification(
    ears: Ears, postgres_url: str, beside: psycopg.Connection
) -> None:
    ears.open("a", postgres_url)
    ears.have("a")
    notify(beside)
    ears.have("a", "a")
    assert listening_state(postgres_url, schema="docket") == "listening"
    assert listening_state(postgres_url, schema="other") == "nobody"


def test_one_listener_of_several_hears_and_another_takes_its_turn_when_it_stops(
    ears: Ears, postgres_url: str, beside: psycopg.Connection
) -> None:
    first = ears.open("a", postgres_url)
    ears.have("a")
    ears.open("b", postgres_url)
    sessions = (
        "SELECT FROM pg_stat_activity WHERE query LIKE 'SELECT pg_try_advisory_lock%' AND datname = current_database()"
    )
    eventually(lambda: beside.execute(sessions.encode()).fetchall())
    notify(beside)
    ears.have("a", "a")
    first.stop()
    ears.have("a", "a", "b")
    notify(beside)
    ears.have("a", "a", "b", "b")


def test_a_listener_whose_session_is_ended_comes_back_and_wakes_for_what_it_missed(
    ears: Ears, postgres_url: str, beside: psycopg.Connection
) -> None:
    ears.open("a", postgres_url)
    ears.have("a")
    holder = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"
    beside.execute(holder.encode())
    ears.have("a", "a")
    notify(beside)
    ears.have("a", "a", "a")


def test_a_listener_that_cannot_connect_tries_again_and_stops_at_once(
    ears: Ears, caplog: pytest.LogCaptureFixture, closed_port: int
) -> None:
    listener = ears.open("a", f"postgresql://127.0.0.1:{closed_port}/proj")
    eventually(lambda: caplog.text.count("lost the session that listens") >= 2)
    with within(listening.STOP_LIMIT + 1.0):
        listener.stop()
    assert ears.heard == []


def test_a_link_that_only_looks_open_is_given_up_and_does_not_hold_up_the_stop(
    ears: Ears, postgres_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listening, "QUIET", 0.2)
    with relay_to(int(conninfo_to_dict(postgres_url)["port"] or 0)) as relay:
        listener = ears.open("a", make_conninfo(postgres_url, port=relay.port))
        ears.have("a")
        relay.fall_silent()
        monkeypatch.setattr(listening, "ANSWER_LIMIT", 0.2)
        eventually(lambda: "has not answered" in caplog.text)
        with within(listening.STOP_LIMIT + 1.0):
            listener.stop()


def test_a_stopped_listener_can_be_started_again(ears: Ears, postgres_url: str, beside: psycopg.Connection) -> None:
    listener = ears.open("a", postgres_url)
    ears.have("a")
    listener.stop()
    eventually(lambda: beside.execute(TURN.encode()).fetchall()[0]["count"] == 0)
    listener.start()
    ears.have("a", "a")


def test_a_child_that_was_forked_meanwhile_does_not_keep_the_turn_alive(
    ears: Ears, postgres_url: str, beside: psycopg.Connection
) -> None:
    listener = ears.open("a", postgres_url)
    ears.have("a")
    assert listener._session is not None
    descriptor = listener._session.fileno()
    child = os.fork()
    if child == 0:
        # The child must leave without running the test session's own clean-up.
        try:
            os.fstat(descriptor)
        except OSError:
            os._exit(0)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    notify(beside)
    ears.have("a", "a")


def test_a_child_of_a_child_keeps_the_file_that_has_the_sockets_number_by_then(ears: Ears, postgres_url: str) -> None:
    listener = ears.open("a", postgres_url)
    ears.have("a")
    assert listener._session is not None
    descriptor = listener._session.fileno()
    child = os.fork()
    if child == 0:
        # Both must leave without running the test session's own clean-up.
        os.dup2(1, descriptor)
        grandchild = os.fork()
        if grandchild == 0:
            try:
                os.fstat(descriptor)
            except OSError:
                os._exit(1)
            os._exit(0)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_listeners_leave_no_thread_behind(ears: Ears, postgres_url: str) -> None:
    listener = ears.open("a", postgres_url)
    ears.have("a")
    listener.stop()
    eventually(lambda: not [thread for thread in threading.enumerate() if thread.name == "docket-listener"])
