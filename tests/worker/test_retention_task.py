"""Pruning as users meet it: a verb, a periodic task, and a command that asks before it removes anything."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace

import psycopg
import pytest
from click.testing import CliRunner, Result
from support.apps import a_docket, a_graph

from docket_celery import Docket, RunStatus
from docket_celery.errors import ConfigError, NotFound
from docket_celery.storage.contracts.retention import PruneCount
from docket_celery.storage.postgres.locks import advisory_key
from docket_celery.worker.commands import docket as group

PRUNE = "docket_celery.prune"


@pytest.fixture
def database(postgres_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("SET search_path = docket")
        yield connection


@pytest.fixture
def docket(postgres_url: str) -> Docket:
    """Keeps runs for an hour, and events for a minute."""
    return a_docket(postgres_url, docket_run_retention=3_600, docket_event_retention=60)


def _aged(docket: Docket, database: psycopg.Connection, *hours: float) -> list[str]:
    """Ended runs whose end, and all that they tell, is so many hours ago."""
    ref = docket.save_graph(a_graph())
    runs = [docket.start_run(ref, {"name": "Ada"}, key=f"key-{number}").id for number in range(len(hours))]
    docket.drain()
    for run_id, age in zip(runs, hours, strict=True):
        database.execute(
            "UPDATE runs SET finished_at = finished_at - %(age)s * interval '1 hour',"
            " events_since = events_since - %(age)s * interval '1 hour' WHERE id = %(id)s",
            {"age": age, "id": run_id},
        )
        database.execute("UPDATE run_events SET at = at - %s * interval '1 hour' WHERE run_id = %s", (age, run_id))
    return runs


def _call(docket: Docket, *arguments: str, input: str | None = None) -> Result:
    return CliRunner().invoke(group, ["prune", *arguments], obj=SimpleNamespace(app=docket.app), input=input)


def test_the_verb_removes_what_is_past_its_age_and_frees_its_key(docket: Docket, database: psycopg.Connection) -> None:
    old, young = _aged(docket, database, 2, 0.5)
    expected = docket.prune(dry_run=True)
    assert expected.runs == 1
    assert docket.prune() == expected
    with pytest.raises(NotFound):
        docket.fetch_run(old)
    assert docket.fetch_run(young).status is RunStatus.DONE
    page = docket.list_events(young)
    assert page.events == ()
    assert page.pruned == page.latest_committed > 0
    again = docket.start_run("greeting", {"name": "Ada"}, key="key-0")
    assert again.id != old
    assert again.status is RunStatus.RUNNING
    assert docket.prune() == PruneCount()


def test_the_command_says_when_nothing_is_ever_past_its_age(docket: Docket, postgres_url: str) -> None:
    assert "everything is kept" in _call(a_docket(postgres_url), "--yes").stderr
    assert "everything is kept" not in _call(docket, "--yes").stderr


def test_a_tenant_prunes_its_own(docket: Docket, database: psycopg.Connection) -> None:
    acme = docket.for_tenant("acme")
    acme.start_run(acme.save_graph(a_graph()), {"name": "Ada"})
    (old,) = _aged(docket, database, 2)
    assert acme.prune(dry_run=True) == PruneCount()
    assert acme.prune() == PruneCount()
    assert docket.fetch_run(old).id == old


def test_graph_versions_need_an_age(postgres_url: str) -> None:
    with pytest.raises(ConfigError, match="docket_run_retention is not set"):
        a_docket(postgres_url).prune(graphs=True)


def test_beat_prunes_where_something_is_to_be_pruned(postgres_url: str) -> None:
    keeping = a_docket(postgres_url)
    keeping.app.finalize()
    assert PRUNE not in keeping.app.conf.beat_schedule
    for option in ("docket_run_retention", "docket_event_retention"):
        docket = a_docket(postgres_url, **{option: 3_600, "docket_prune_interval": 77})
        docket.app.finalize()
        entry = docket.app.conf.beat_schedule[PRUNE]
        assert (entry["task"], entry["schedule"], entry["options"]["queue"]) == (PRUNE, 77.0, "docket.ticks")
        assert docket.app.tasks[PRUNE].queue == "docket.ticks"
        assert docket.app.tasks[PRUNE].time_limit == 120.0


def test_the_task_prunes(docket: Docket, database: psycopg.Connection) -> None:
    _aged(docket, database, 2, 3, 0)
    docket.app.finalize()
    assert docket.app.tasks[PRUNE].apply().get()["runs"] == 2
    assert docket.app.tasks[PRUNE].apply().get() == {"runs": 0, "events": 0}


def test_a_stopping_worker_begins_no_further_pass(docket: Docket, database: psycopg.Connection) -> None:
    _aged(docket, database, *[2] * 250)
    docket.app.finalize()
    docket.stopping_now()
    assert docket.app.tasks[PRUNE].apply().get()["runs"] == 200


def test_the_command_counts_asks_and_then_removes(docket: Docket, database: psycopg.Connection) -> None:
    (old,) = _aged(docket, database, 2)
    counted = _call(docket, "--dry-run", "--json")
    assert json.loads(counted.stdout)["runs"] == 1
    declined = _call(docket, input="n\n")
    assert declined.exit_code == 1
    assert "Remove 1 runs" in declined.output
    unasked = _call(docket, input="")
    assert unasked.exit_code == 1
    assert docket.fetch_run(old).id == old
    agreed = _call(docket, "--json", input="y\n")
    assert agreed.exit_code == 0, agreed.output
    assert json.loads(agreed.stdout) == {**json.loads(counted.stdout)}
    with pytest.raises(NotFound):
        docket.fetch_run(old)


def test_the_command_tells_how_far_it_is_and_that_another_is_at_work(
    docket: Docket, database: psycopg.Connection
) -> None:
    _aged(docket, database, *[2] * 250)
    first = _call(docket, "--yes")
    assert "removed 200 runs" in first.stderr
    assert "250" in first.stdout
    with database.transaction():
        database.execute("SELECT pg_advisory_xact_lock(%s)", (advisory_key("prune", "docket"),))
        assert "another pruner is at work" in _call(docket, "--yes").stderr


def test_the_commands_name_and_end_a_run_that_cannot_be_read(docket: Docket, database: psycopg.Connection) -> None:
    run = docket.start_run(docket.save_graph(a_graph()), {"name": "Ada"})
    database.execute("""UPDATE runs SET state = '{"v":99}'""")
    runner, obj = CliRunner(), SimpleNamespace(app=docket.app)
    for command in (["show", run.id], ["cancel", run.id]):
        ended = runner.invoke(group, command, obj=obj)
        assert ended.exit_code == 1
        assert "has version 99" in ended.output
        assert "docket cancel --force" in ended.output
    ended = runner.invoke(group, ["cancel", run.id, "--force", "--reason", "cannot be read"], obj=obj)
    assert (ended.exit_code, "is cancelled" in ended.output) == (0, True)
    assert docket.fetch_run(run.id).status is RunStatus.CANCELLED
