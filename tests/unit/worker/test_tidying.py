"""What an app, a library or Celery itself puts in order between two tasks is seen, and nothing else is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from celery import Celery, Task, signals
from celery.app import trace
from celery.loaders.app import AppLoader
from support.apps import ABSENT_BROKER, a_docket

from docket_celery import Docket
from docket_celery.worker.publisher import VEHICLE
from docket_celery.worker.tidying import is_tidied


def put_in_order(*_: Any, **__: Any) -> None:
    return None


def vehicle_of(**options: Any) -> Any:
    app = Celery("tidied", broker=ABSENT_BROKER, set_as_current=False, **options)
    app.conf.docket_database_url = "postgresql://localhost/nowhere"
    Docket(app)
    return app.tasks[VEHICLE]


@contextmanager
def received(signal: Any, sender: Any = None) -> Iterator[None]:
    signal.connect(put_in_order, sender=sender)
    try:
        yield
    finally:
        signal.disconnect(put_in_order, sender=sender)


def test_an_app_that_does_nothing_between_two_tasks() -> None:
    assert not is_tidied(vehicle_of())


def test_what_a_worker_wraps_around_every_task_by_itself() -> None:
    vehicle = vehicle_of()
    trace._install_stack_protection()
    try:
        assert not is_tidied(vehicle)
    finally:
        trace.reset_worker_optimizations(vehicle.app)


@pytest.mark.parametrize("name", ["task_prerun", "task_postrun", "task_success"])
def test_a_receiver_of_what_happens_around_every_task(name: str) -> None:
    """Celery's own support of Django is one."""
    vehicle = vehicle_of()
    with received(getattr(signals, name)):
        assert is_tidied(vehicle)
    assert not is_tidied(vehicle)


def test_a_receiver_of_what_happens_around_another_task() -> None:
    other = a_docket(None).app.task(put_in_order, name="other")
    with received(signals.task_postrun, other):
        assert not is_tidied(vehicle_of())


@pytest.mark.parametrize("name", ["__call__", "before_start", "on_success", "after_return"])
def test_a_class_of_tasks_that_wraps_each_call(name: str) -> None:
    """As apps of Flask have it, which push a context around every task."""
    assert is_tidied(vehicle_of(task_cls=type("Wrapping", (Task,), {name: put_in_order})))


@pytest.mark.parametrize("name", ["on_task_init", "on_process_cleanup"])
def test_a_loader_that_does_something_around_each_task(name: str) -> None:
    assert is_tidied(vehicle_of(loader=type("Tidying", (AppLoader,), {name: put_in_order})))
