"""Who sends the ticks: the workers themselves, or beat with a scheduler that keeps its entries elsewhere."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from fleet import Fleet, eventually
from proj.graphs import line, napping, retrying
from psycopg.conninfo import conninfo_to_dict

from docket_celery.run.document import RunStatus
from docket_celery.worker.publisher import DISPATCH

WITHOUT_BEAT = {"docket_orphan_ttl": 3, "docket_poll_interval": 1, "docket_tick": "worker"}


def ticks_sent(fleet: Fleet, *workers: str) -> int:
    return fleet.log_of(*workers).count(f"Task {DISPATCH}[")


@pytest.mark.parametrize("settings", [WITHOUT_BEAT])
@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_without_beat_runs_retries_and_timers_complete(fleet: Fleet, pool: str) -> None:
    fleet.worker("w1", pool=pool)
    runs = [fleet.start(line("s1", "s2")), fleet.start(retrying(backoff=1.5)), fleet.start(napping(2.5))]
    for run in runs:
        assert fleet.finish(run).status is RunStatus.DONE
    fleet.assert_invariants()


@pytest.mark.parametrize("settings", [WITHOUT_BEAT])
def test_without_beat_the_run_of_a_killed_worker_is_taken_over(fleet: Fleet) -> None:
    first = fleet.worker("w1", concurrency=1)
    run = fleet.start(line("gate1", "s2"))
    eventually(lambda: fleet.executions(run))
    first.kill()
    fleet.worker("w2", concurrency=1)
    eventually(lambda: fleet.executions(run, "gate1") == 2)
    fleet.open_gate("gate1")
    assert fleet.finish(run).status is RunStatus.DONE
    fleet.assert_sound(run, nodes=["gate1", "s2"])


@pytest.mark.parametrize("settings", [WITHOUT_BEAT])
def test_the_ticks_of_several_workers_make_about_one_scan_per_interval(fleet: Fleet) -> None:
    for name in ("w1", "w2", "w3"):
        fleet.worker(name, concurrency=1)
    query = "SELECT scans, extract(epoch FROM last_scan_at)::float FROM docket.dispatch WHERE last_scan_at IS NOT NULL"
    ((scans, began),) = eventually(lambda: fleet.rows(query))
    eventually(lambda: fleet.rows(query)[0][0] >= scans + 6)
    ((later, ended),) = fleet.rows(query)
    assert (later - scans) / (ended - began) <= 1.1


@pytest.mark.parametrize("settings", [WITHOUT_BEAT])
def test_a_worker_without_a_free_slot_piles_up_no_ticks(fleet: Fleet) -> None:
    fleet.worker("w1", concurrency=1)
    run = fleet.start(line("gate1"))
    eventually(lambda: fleet.executions(run))
    fleet.worker("w2", concurrency=1)
    before = ticks_sent(fleet, "w2")
    eventually(lambda: ticks_sent(fleet, "w2") >= before + 4)
    client: Any = fleet.app.connection_for_write().channel().client
    eventually(lambda: client.llen("docket.ticks") == 0)
    fleet.open_gate("gate1")
    assert fleet.finish(run).status is RunStatus.DONE


# -- schedulers that keep their entries elsewhere ----------------------------------------------------------------------


def _ticks_are_all_it_takes(fleet: Fleet) -> None:
    """Ticks arrive and timers beyond the next tick, which no nudge serves, complete."""
    fleet.worker("w1")
    run = fleet.start(napping(3.0))
    assert fleet.finish(run).status is RunStatus.DONE
    before = ticks_sent(fleet, "w1")
    eventually(lambda: ticks_sent(fleet, "w1") >= before + 3)


def test_redbeat_sends_the_tick(fleet: Fleet) -> None:
    fleet.celery("beat", "beat", "-S", "redbeat.RedBeatScheduler", "--max-interval", "1", "-l", "INFO")
    _ticks_are_all_it_takes(fleet)
    client: Any = fleet.app.connection_for_write().channel().client
    entry = json.loads(client.hget(f"redbeat:{DISPATCH}", "definition"))
    assert (entry["task"], entry["options"]["queue"]) == (DISPATCH, "docket.ticks")


def a_django_site(directory: Path, database: dict[str, str]) -> dict[str, str]:
    """The environment of a Django project of settings only, in `directory`, whose database is migrated."""
    (directory / "django_site.py").write_text(
        textwrap.dedent(f"""
        SECRET_KEY = "for tests"
        USE_TZ = True
        INSTALLED_APPS = ["django_celery_beat"]
        DATABASES = {{"default": {database!r}}}
        DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
        """)
    )
    path = os.pathsep.join([str(directory), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {"DJANGO_SETTINGS_MODULE": "django_site", "PYTHONPATH": path}
    migrate = [sys.executable, "-m", "django", "migrate", "--verbosity", "0"]
    subprocess.run(migrate, check=True, cwd=directory, env={**os.environ, **environment}, timeout=60)
    return environment


ENTRY = """
SELECT t.task, t.queue, t.enabled, i.every, i.period FROM django_celery_beat_periodictask t
JOIN django_celery_beat_intervalschedule i ON i.id = t.interval_id WHERE t.name = 'docket_celery.dispatch'
"""


@pytest.mark.parametrize("kind", ["sqlite3", "postgresql"])
def test_django_celery_beat_sends_the_tick_from_its_table(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    file, parts = tmp_path / "site.db", conninfo_to_dict(fleet.database_url)
    server = {"NAME": parts["dbname"], "USER": parts["user"], "HOST": parts["host"], "PORT": parts["port"]}
    where = {"NAME": str(file)} if kind == "sqlite3" else {name: str(value) for name, value in server.items()}
    with monkeypatch.context() as beats_own:
        for name, value in a_django_site(tmp_path, {"ENGINE": f"django.db.backends.{kind}", **where}).items():
            beats_own.setenv(name, value)
        scheduler = "django_celery_beat.schedulers:DatabaseScheduler"
        fleet.celery("beat", "beat", "-S", scheduler, "--max-interval", "1", "-l", "INFO")
    _ticks_are_all_it_takes(fleet)
    if kind == "sqlite3":
        with sqlite3.connect(file) as connection:
            (entry,) = connection.execute(ENTRY).fetchall()
    else:
        (entry,) = fleet.rows(ENTRY)
    assert entry == (DISPATCH, "docket.ticks", True, 1, "seconds")
