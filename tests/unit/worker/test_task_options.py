"""What a host sets for all of its tasks does not reach docket's, and docket sets nothing for the host's."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery, Task

from docket_celery import Docket
from docket_celery.errors import StoreUnavailable
from docket_celery.worker.publisher import DISPATCH, PRUNE, VEHICLE

HOSTILE: dict[str, Any] = {
    "task_time_limit": 1,
    "task_soft_time_limit": 1,
    "task_acks_late": False,
    "task_acks_on_failure_or_timeout": False,
    "task_acks_on_failure": False,
    "task_acks_on_timeout": False,
    "task_reject_on_worker_lost": True,
    "task_retry_on_worker_lost": True,
    "task_always_eager": True,
    "task_default_rate_limit": "1/h",
    "task_ignore_result": False,
    "task_serializer": "pickle",
    "task_store_eager_result": True,
    "task_store_errors_even_if_ignored": True,
    "task_track_started": True,
    "task_annotations": {
        "*": {
            "acks_late": False,
            "expires": 1,
            "ignore_result": False,
            "max_retries": 7,
            "queue": "elsewhere",
            "rate_limit": "1/m",
            "serializer": "pickle",
            "soft_time_limit": 1,
            "time_limit": 1,
        }
    },
}


class Retrying(Task):  # type: ignore[misc]
    """What a host may give to all of its tasks as their class."""

    autoretry_for = (Exception,)
    retry_kwargs = {"max_retries": 5, "countdown": 60}  # noqa: RUF012


def own() -> None:
    """A task of the host."""


def hostile_app(*, finalized: bool) -> Celery:
    app = Celery("hostile", broker="memory://", set_as_current=False, task_cls=Retrying)
    app.conf.update(HOSTILE)
    app.conf.docket_database_url = "postgresql://127.0.0.1/nowhere"
    app.task(own, name="hosts.own")
    if finalized:
        app.finalize()
    Docket(app)
    app.finalize()
    return app


@pytest.fixture(params=[False, True], ids=["before finalization", "after finalization"])
def app(request: pytest.FixtureRequest) -> Celery:
    return hostile_app(finalized=request.param)


@pytest.mark.parametrize(("name", "queue"), [(DISPATCH, "docket.ticks"), (PRUNE, "docket.ticks"), (VEHICLE, "docket")])
def test_no_global_setting_and_no_annotation_reaches_dockets_tasks(app: Celery, name: str, queue: str) -> None:
    task = app.tasks[name]
    assert task.queue == queue
    assert task.serializer == "json"
    assert task.ignore_result is True
    assert not task.track_started
    assert not task.store_eager_result
    assert not task.store_errors_even_if_ignored
    assert not task.rate_limit
    assert task.max_retries == 0
    assert task.acks_late is (name == VEHICLE)
    assert task.acks_on_failure_or_timeout is True
    assert not task.reject_on_worker_lost
    assert task.expires != 1
    # Celery compares the clocks of two hosts here, and one of them may be in another time zone.
    assert task.expires is None or task.expires >= 24 * 3_600


@pytest.mark.parametrize("name", [DISPATCH, PRUNE, VEHICLE])
def test_a_host_that_signs_its_messages_has_those_of_beat_signed_too(name: str) -> None:
    app = Celery("signing", broker="memory://", set_as_current=False)
    app.conf.update(task_serializer="auth", accept_content=["auth"])
    Docket(app)
    app.finalize()
    assert app.tasks[name].serializer == "auth"


@pytest.mark.parametrize("name", [DISPATCH, PRUNE, VEHICLE])
def test_the_hosts_result_backend_is_neither_made_nor_asked_for_dockets_tasks(app: Celery, name: str) -> None:
    """Celery makes one for each thread or greenlet that asks, so for each task on gevent."""
    made = []
    app._get_backend = lambda: made.append(name)
    app.tasks[name].backend.process_cleanup()
    app.tasks[name].backend.store_result("id", "a result", "SUCCESS")
    assert made == []


def test_nothing_is_said_of_the_hosts_results_that_is_not_true_of_its_own_backend(
    recwarn: pytest.WarningsRecorder,
) -> None:
    """Celery says of a backend without room for compressed results that the host's setting is ignored."""
    app = Celery("compressing", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.result_compression = "gzip"
    Docket(app)
    app.finalize()
    assert [str(warning.message) for warning in recwarn if "Backend" in str(warning.message)] == []


@pytest.mark.parametrize("name", [DISPATCH, PRUNE])
def test_a_task_that_fails_is_not_tried_again_whatever_class_the_host_gives_its_tasks(name: str) -> None:
    app = Celery("retrying", broker="memory://", set_as_current=False, task_cls=Retrying)
    app.conf.docket_database_url = "postgresql://127.0.0.1:9/nowhere"
    app.conf.docket_run_retention = 60
    Docket(app)
    app.finalize()
    task = app.tasks[name]
    task.push_request(called_directly=False, args=(), kwargs={}, id="a message", delivery_info={})
    with pytest.raises(StoreUnavailable):
        task.run()


def test_the_process_limit_is_beyond_everything_that_a_vehicle_may_take(app: Celery) -> None:
    docket = Docket.of(app)
    assert docket is not None
    config = docket.config
    assert config.drain_max_elapsed is not None
    task = app.tasks[VEHICLE]
    longest = config.vehicle_max_elapsed + config.drain_max_elapsed + config.max_attempt_elapsed
    assert task.time_limit > longest
    assert task.soft_time_limit == task.time_limit


def test_the_hosts_tasks_and_settings_stay_as_they_are(app: Celery) -> None:
    own = app.tasks["hosts.own"]
    assert own.queue == "elsewhere"
    assert own.time_limit == 1
    assert {key: app.conf[key] for key in HOSTILE} == HOSTILE
