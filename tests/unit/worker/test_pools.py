"""Which exceptions in the middle of a node are the process's end, and which are the node's own."""

from __future__ import annotations

import signal
from types import FrameType

import pytest
from billiard import common
from celery.exceptions import WorkerShutdown, WorkerTerminate

from docket_celery.worker.pools import is_farewell, is_green, is_pool_child, node_executor


def test_an_exit_is_the_nodes_own_until_the_terminate_handler_has_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_farewell(SystemExit(0))
    monkeypatch.setattr(common, "_should_have_exited", [True])
    assert is_farewell(SystemExit(0))


def test_clean_up_that_fails_during_termination_is_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_farewell(ValueError())
    monkeypatch.setattr(common, "_should_have_exited", [True])
    assert is_farewell(ValueError())


@pytest.mark.parametrize("error", [WorkerShutdown(0), WorkerTerminate(1)])
def test_a_worker_that_shuts_down_in_this_thread_is_no_failure_of_the_node(error: SystemExit) -> None:
    assert is_farewell(error)


def test_an_error_that_hides_where_it_comes_from_is_the_nodes_own() -> None:
    class Hides(Exception):
        @property
        def __traceback__(self) -> None:
            raise RuntimeError("no traceback")

        @property
        def __class__(self) -> type:
            raise RuntimeError("no class")

    assert not is_farewell(Hides())


def test_an_interrupt_comes_from_the_keyboard_only_where_python_would_raise_one() -> None:
    def ignore(number: int, frame: FrameType | None) -> None:
        return None

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert is_farewell(KeyboardInterrupt())
        signal.signal(signal.SIGINT, ignore)
        assert not is_farewell(KeyboardInterrupt())
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_process_that_no_pool_has_made_is_neither_a_child_nor_green() -> None:
    assert not is_pool_child()
    assert not is_green()
    assert node_executor(lambda: 0.0).overdue.count == 0
