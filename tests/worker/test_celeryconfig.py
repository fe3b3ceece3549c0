"""Docket as a guest: the shipped configuration tells the truth, and the host's own settings stay the host's."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
from celery import Celery
from celery.beat import Scheduler, Service
from celery.signals import beat_init
from support.apps import ABSENT_BROKER

from docket_celery import Docket
from docket_celery.config import PREFIX, Config
from docket_celery.errors import ConfigError
from docket_celery.worker.publisher import DISPATCH, PRUNE, VEHICLE

FILE = Path(__file__).parents[2] / "celeryconfig.py"
OPTION = re.compile(r"^(?P<hidden># )?(?P<key>docket_\w+) = (?P<value>.+)$", re.MULTILINE)
URL = "postgresql://127.0.0.1:9/never-asked"


def _shipped() -> ModuleType:
    spec = importlib.util.spec_from_file_location("shipped_celeryconfig", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _app(**settings: Any) -> Celery:
    app = Celery("host", broker=ABSENT_BROKER, set_as_current=False)
    app.conf.docket_database_url = URL
    app.conf.update(settings)
    return app


def _written() -> dict[str, str]:
    return {found["key"]: found["value"] for found in OPTION.finditer(FILE.read_text(encoding="utf-8"))}


# -- the file ----------------------------------------------------------------------------------------------------------


def test_the_shipped_configuration_loads_into_an_app_with_docket() -> None:
    app = Celery("proj", set_as_current=False)
    app.config_from_object(_shipped())
    docket = Docket(app)
    app.finalize()
    assert docket.config == Config(database_url="postgresql://127.0.0.1:5432/docket")
    assert app.conf.worker_prefetch_multiplier == 1


def test_the_shipped_configuration_names_every_option_and_none_that_does_not_exist() -> None:
    assert set(_written()) == {PREFIX + option.name for option in fields(Config)}


@pytest.mark.parametrize("option", fields(Config), ids=lambda option: str(option.name))
def test_what_is_commented_out_shows_the_true_default(option: Any) -> None:
    if option.name in ("database_url", "node_modules"):
        return  # The one has no default, the other's is described: an example stands there.
    written = ast.literal_eval(_written()[PREFIX + option.name])
    assert option.default is not MISSING
    assert (written, type(written)) == (option.default, type(option.default))


def test_uncommenting_everything_gives_a_valid_configuration() -> None:
    settings = {key: ast.literal_eval(value) for key, value in _written().items() if key != "docket_database_url"}
    assert Config.from_mapping(settings).node_modules == ("proj.graphs",)


# -- what Docket adds --------------------------------------------------------------------------------------------------


def test_the_tick_is_a_beat_entry_on_its_own_queue() -> None:
    app = _app(docket_poll_interval=7)
    Docket(app)
    app.finalize()
    entry = app.conf.beat_schedule[DISPATCH]
    assert (entry["task"], entry["schedule"]) == (DISPATCH, 7.0)
    assert entry["options"]["queue"] == "docket.ticks"
    assert PRUNE not in app.conf.beat_schedule


def test_pruning_is_a_beat_entry_once_something_is_to_be_pruned() -> None:
    app = _app(docket_run_retention=3600, docket_prune_interval=60)
    Docket(app)
    app.finalize()
    assert app.conf.beat_schedule[PRUNE]["schedule"] == 60.0


def test_without_install_beat_the_schedule_is_left_alone() -> None:
    app = _app(docket_install_beat=False)
    Docket(app)
    app.finalize()
    assert dict(app.conf.beat_schedule) == {}


class Late:
    """What a host configures an app with that is finalized already."""

    beat_schedule: ClassVar[dict[str, Any]] = {"own": {"task": "own", "schedule": 5}}
    docket_database_url = "postgresql://127.0.0.1/late"
    docket_queue = "flows"
    docket_poll_interval = 7


def test_an_app_that_is_configured_after_it_was_finalized_means_what_it_says_last() -> None:
    app = Celery("late", broker="memory://", set_as_current=False)
    docket = Docket(app)
    app.finalize()
    assert docket.config.database_url is None
    app.config_from_object(Late)
    assert (docket.config.database_url, docket.config.queue) == (Late.docket_database_url, "flows")
    assert (app.tasks[VEHICLE].queue, app.tasks[DISPATCH].queue) == ("flows", "flows.ticks")
    assert set(app.conf.beat_schedule) == {"own", DISPATCH}
    assert app.conf.beat_schedule[DISPATCH]["schedule"] == 7.0


def test_an_app_whose_options_were_wrong_when_it_was_finalized_is_set_up_when_they_are_mended() -> None:
    app = Celery("mended", broker="memory://", set_as_current=False)
    app.config_from_object({"docket_poll_interval": 0})
    docket = Docket(app)
    app.finalize()
    with pytest.raises(ConfigError, match="docket_poll_interval"):
        _ = docket.config
    app.config_from_object(Late)
    assert (app.tasks[VEHICLE].queue, app.tasks[DISPATCH].queue) == ("flows", "flows.ticks")
    assert set(app.conf.beat_schedule) == {"own", DISPATCH}


def test_each_docket_of_a_process_hears_of_its_own_beat() -> None:
    apps = [_app() for _ in range(2)]
    dockets = [Docket(app) for app in apps]
    for app in apps:
        app.finalize()
        app.conf.beat_schedule = {}
        beat_init.send(sender=Service(app, scheduler_cls=Scheduler))
        assert set(app.conf.beat_schedule) == {DISPATCH}
    assert [Docket.of(app) for app in apps] == dockets


@pytest.mark.parametrize("settings", [{}, {"docket_install_beat": False}, {"docket_tick": "worker"}], ids=str)
def test_a_beat_whose_schedule_was_set_anew_after_finalization_has_our_entries_all_the_same(
    settings: dict[str, Any],
) -> None:
    app = _app(**settings)
    Docket(app)
    app.finalize()
    app.conf.beat_schedule = {"own": {"task": "own", "schedule": 5}}
    service = Service(app, scheduler_cls=Scheduler)
    service.scheduler.update_from_dict(app.conf.beat_schedule)
    beat_init.send(sender=service)
    ours = set() if settings else {DISPATCH}
    assert set(service.scheduler.schedule) == set(app.conf.beat_schedule) == {"own", *ours}


def test_a_beat_schedule_of_the_host_stays_beside_ours_whenever_it_is_set() -> None:
    app = _app()
    Docket(app)
    app.conf.beat_schedule = {"own": {"task": "own", "schedule": 5}}
    app.finalize()
    assert set(app.conf.beat_schedule) == {"own", DISPATCH}


def test_our_tasks_carry_their_own_options_against_every_global_one() -> None:
    app = _app(
        task_time_limit=1,
        task_soft_time_limit=1,
        task_acks_late=False,
        task_serializer="pickle",
        task_ignore_result=False,
        task_track_started=True,
        task_reject_on_worker_lost=True,
        task_default_queue="elsewhere",
        docket_queue="flow",
    )
    Docket(app)
    app.finalize()
    vehicle, dispatch = app.tasks[VEHICLE], app.tasks[DISPATCH]
    assert (vehicle.queue, dispatch.queue) == ("flow", "flow.ticks")
    assert (vehicle.acks_late, dispatch.acks_late) == (True, False)
    for task in (vehicle, dispatch):
        assert task.time_limit > 60
        assert task.soft_time_limit > 60
        assert task.serializer == "json"
        assert task.ignore_result is True
        assert task.track_started is False
        assert task.reject_on_worker_lost is False
    assert vehicle.time_limit > 300 + 300


# -- what Docket leaves alone ------------------------------------------------------------------------------------------


def _own(conf: Mapping[str, Any]) -> dict[str, str]:
    """Every setting of the host, in a form that compares; the schedule without our entries."""
    own = {key: repr(conf[key]) for key in conf if not key.startswith(PREFIX) and key != "beat_schedule"}
    schedule = conf["beat_schedule"].items()
    own["beat_schedule"] = repr({name: entry for name, entry in schedule if name not in (DISPATCH, PRUNE)})
    return own


def test_no_setting_of_the_host_changes() -> None:
    settings: dict[str, Any] = {
        "task_routes": {"own.*": {"queue": "own"}},
        "beat_schedule": {"own": {"task": "own.task", "schedule": 5}},
        "task_annotations": {"*": {"rate_limit": "10/s"}},
        "imports": ("json",),
    }
    with_docket, without = _app(**settings), _app(**settings)
    docket = Docket(with_docket)
    for app in (with_docket, without):
        app.finalize()
    _ = docket.config, docket.publisher, docket.dispatcher
    assert _own(with_docket.conf) == _own(without.conf)


def test_the_hosts_other_tasks_keep_what_they_have() -> None:
    app, without = _app(task_acks_late=True, task_time_limit=5), _app(task_acks_late=True, task_time_limit=5)
    Docket(app)

    def own() -> None:
        """A task of the host's."""

    for one in (app, without):
        one.task(name="own.task", shared=False)(own)
        one.finalize()
    kept, plain = app.tasks["own.task"], without.tasks["own.task"]
    assert kept.acks_late is True
    assert (kept.acks_late, kept.time_limit) == (plain.acks_late, plain.time_limit)
    ours = {name for name in app.tasks if name.startswith("docket_celery")}
    assert ours == {DISPATCH, VEHICLE, PRUNE}


def test_the_broker_connections_of_the_host_are_not_ours() -> None:
    app = _app(broker_transport_options={"visibility_timeout": 60})
    docket = Docket(app)
    docket.publisher.wake()
    assert app.conf.broker_transport_options == {"visibility_timeout": 60}


# -- how an app comes to its Docket ------------------------------------------------------------------------------------


def test_two_apps_in_one_process_do_not_meet() -> None:
    first, second = _app(docket_queue="first"), _app(docket_queue="second", docket_poll_interval=9)
    dockets = Docket(first), Docket(second)
    assert (Docket.of(first), Docket.of(second)) == dockets
    assert [app.tasks[VEHICLE].queue for app in (first, second)] == ["first", "second"]
    assert first.tasks[DISPATCH] is not second.tasks[DISPATCH]
    assert second.conf.beat_schedule[DISPATCH]["schedule"] == 9.0
    assert first.conf.beat_schedule[DISPATCH]["schedule"] == 1.0
    assert DISPATCH not in Celery("third", set_as_current=False).tasks


def test_an_app_has_one_docket_and_a_docket_one_app() -> None:
    app = _app()
    docket = Docket(app)
    with pytest.raises(ConfigError, match="already has a Docket"):
        Docket(app)
    with pytest.raises(ConfigError, match="already belongs to app 'host'"):
        docket.init_app(_app())


def test_init_app_does_the_same_later_and_verbs_ask_for_it_until_then() -> None:
    docket = Docket()
    with pytest.raises(ConfigError, match=r"init_app\(app\)"):
        docket.list_runs()
    app = _app()
    docket.init_app(app)
    app.finalize()
    assert (docket.app, Docket.of(app)) == (app, docket)
    assert app.tasks[VEHICLE].queue == "docket"


def test_an_app_that_is_finalized_already_is_wired_at_once() -> None:
    app = _app(docket_queue="late")
    app.finalize()
    Docket(app)
    assert app.tasks[VEHICLE].queue == "late"
    assert DISPATCH in app.conf.beat_schedule


def test_an_app_that_is_finalized_already_refuses_a_wrong_option_at_once() -> None:
    app = _app(docket_orphan_tll=5)
    app.finalize()
    with pytest.raises(ConfigError, match="did you mean docket_orphan_ttl"):
        Docket(app)


def test_options_set_after_docket_and_before_first_use_count() -> None:
    app = Celery("host", broker=ABSENT_BROKER, set_as_current=False)
    docket = Docket(app)
    app.conf.docket_database_url = URL
    app.conf.docket_queue = "later"
    assert docket.config.queue == "later"
    assert app.tasks[VEHICLE].queue == "later"


# -- Django ------------------------------------------------------------------------------------------------------------


def test_a_namespace_delivers_our_options_in_capitals() -> None:
    settings = ModuleType("settings")
    settings.CELERY_DOCKET_DATABASE_URL = URL  # type: ignore[attr-defined]
    settings.CELERY_DOCKET_QUEUE = "django"  # type: ignore[attr-defined]
    settings.CELERY_BROKER_URL = ABSENT_BROKER  # type: ignore[attr-defined]
    settings.DOCKET_UNRELATED = "another app's"  # type: ignore[attr-defined]
    app = Celery("site", set_as_current=False)
    app.config_from_object(settings, namespace="CELERY")
    docket = Docket(app)
    assert (docket.config.database_url, docket.config.queue) == (URL, "django")
    assert app.tasks[VEHICLE].queue == "django"


def test_an_unknown_option_under_a_namespace_is_refused_too() -> None:
    settings = ModuleType("settings")
    settings.CELERY_DOCKET_ORPHAN_TLL = 5  # type: ignore[attr-defined]
    app = Celery("site", set_as_current=False)
    app.config_from_object(settings, namespace="CELERY")
    with pytest.raises(ConfigError, match="did you mean docket_orphan_ttl"):
        _ = Docket(app).config
