"""Processes answer to the vocabulary of containers: ended by any signal, started again, read while they run."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from docket_celery.embedded.process import Child, StartFailed
from docket_celery.testing.containers import ProcessContainer, RedisContainer, WorkerContainer
from docket_celery.testing.processes import WorkerOptions

CAREFUL = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("goodbye", flush=True), sys.exit(3)))
print("hello", flush=True)
time.sleep(600)
"""


class Greeter(ProcessContainer):
    """Ready once its log has one more greeting than it had starts before."""

    def __init__(self, log: Path, code: str = CAREFUL) -> None:
        super().__init__("greeter")
        self._command = [sys.executable, "-c", code]
        self._log = log
        self._starts = 0
        self._start_again()

    @property
    def child(self) -> Child:
        return self._child

    def _start_again(self) -> None:
        self._starts += 1
        self._child = Child.start(self._command, log=self._log)

    def _answers(self) -> bool:
        return self.logs().count("hello") == self._starts


@pytest.fixture
def greeter(tmp_path: Path) -> Iterator[Greeter]:
    container = Greeter(tmp_path / "greeter.log")
    yield container
    container.teardown()


@pytest.mark.parametrize("named", ["SIGTERM", "TERM", 15, signal.SIGTERM])
def test_a_signal_is_named_as_docker_lets_it_be_named(greeter: Greeter, named: str | int) -> None:
    assert greeter.ready()
    greeter.kill(signal=named)
    assert greeter.child.wait(20.0)
    assert greeter.logs() == "hello\ngoodbye\n"
    assert greeter.attrs["State"] == {"Status": "exited", "Running": False, "Pid": 0, "ExitCode": 3}


def test_a_signal_that_does_not_exist_is_refused(greeter: Greeter) -> None:
    with pytest.raises(ValueError, match="there is no signal 'SIGFOO'"):
        greeter.kill("SIGFOO")


def test_without_a_name_it_is_sigkill_and_over_when_it_returns(greeter: Greeter) -> None:
    greeter.ready()
    greeter.kill()
    assert greeter.status == "exited"
    assert greeter.attrs["State"]["ExitCode"] == 128 + signal.SIGKILL
    assert greeter.logs() == "hello\n"


def test_a_restart_ends_it_in_order_and_goes_on_with_the_same_log(greeter: Greeter) -> None:
    greeter.ready()
    before = greeter.child.pid
    greeter.restart()
    assert greeter.status == "running"
    assert greeter.attrs["State"]["Pid"] == greeter.child.pid != before
    assert greeter.logs() == "hello\ngoodbye\nhello\n"


def test_at_the_end_it_is_killed_without_a_word(greeter: Greeter) -> None:
    greeter.ready()
    greeter.teardown()
    assert greeter.status == "exited"
    assert greeter.logs() == "hello\n"


def test_a_program_that_ends_at_once_is_not_ready_and_its_log_says_why(tmp_path: Path) -> None:
    container = Greeter(tmp_path / "greeter.log", "raise SystemExit('no such luck')")
    with pytest.raises(StartFailed, match="no such luck"):
        container.ready()


def test_a_redis_is_empty_after_a_restart_and_where_it_was(tmp_path: Path) -> None:
    container = RedisContainer("broker", tmp_path / "broker")
    try:
        client = redis.Redis.from_url(container.celeryconfig["host_url"])
        client.set("message", "1")
        container.kill("SIGKILL")
        assert container.status == "exited"
        container.restart()
        assert client.get("message") is None
        assert container.celeryconfig["url"] == container.celeryconfig["host_url"]
    finally:
        container.teardown()


def test_a_worker_whose_app_does_not_exist_fails_with_what_celery_says(tmp_path: Path) -> None:
    container = WorkerContainer(WorkerOptions(app="no_such_app", queues="a,b"), tmp_path)
    assert container.worker_queue() == "a"
    with pytest.raises(StartFailed, match="no_such_app"):
        container.ready()


def test_the_command_line_of_a_worker_has_every_option() -> None:
    options = WorkerOptions(app="proj", queues="a,b", pool="solo", concurrency=3, arguments=("--without-gossip",))
    written = "worker -n w@here -Q a,b -P solo -c 3 -l INFO --without-gossip"
    assert " ".join(options.command("w@here")) == written
