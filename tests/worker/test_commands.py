"""The commands, through click's own runner on a real database: what they do, print, and exit with."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner, Result
from support.apps import a_docket, a_graph, a_question

from docket_celery import Docket, Run, RunStatus
from docket_celery.worker.commands import docket as group


def _call(docket: Docket, *arguments: str) -> Result:
    return CliRunner().invoke(group, list(arguments), obj=SimpleNamespace(app=docket.app))


def _done(docket: Docket, *arguments: str) -> str:
    ended = _call(docket, *arguments)
    assert ended.exit_code == 0, ended.output
    return ended.output


def _json(docket: Docket, *arguments: str) -> Any:
    return json.loads(_done(docket, *arguments, "--json"))


def _refused(docket: Docket, *arguments: str, code: int = 1) -> str:
    ended = _call(docket, *arguments)
    assert ended.exit_code == code, ended.output
    return ended.output


def _start(docket: Docket) -> Run:
    return docket.start_run(docket.save_graph(a_graph()), {"name": "Ada"})


@pytest.fixture
def asking(docket: Docket) -> Run:
    run = docket.start_run(docket.save_graph(a_question()))
    docket.drain()
    return docket.fetch_run(run.id)


def test_migrate_makes_the_schema_and_check_says_that_it_fits(empty_postgres_url: str) -> None:
    docket = a_docket(empty_postgres_url)
    assert "docket migrate" in _refused(docket, "migrate", "--check")
    assert "schema 'docket' is up to date" in _done(docket, "migrate")
    assert "schema 'docket' is up to date" in _done(docket, "migrate")
    assert "schema 'docket' fits this version" in _done(docket, "migrate", "--check")
    assert docket.list_runs().runs == ()


def test_migrate_prints_its_sql_without_a_database() -> None:
    printed = _done(a_docket(None), "migrate", "--sql")
    assert 'CREATE TABLE "docket".runs' in printed


def test_status_shows_totals_and_workers(docket: Docket) -> None:
    _start(docket)
    record = _json(docket, "status")
    assert record["due"] >= 1
    assert record["oldest_due_at"] is not None
    assert (record["claimed"], record["poisoned"], record["workers"]) == (0, 0, [])
    assert "oldest_due_at" in _done(docket, "status")


def test_health_judges_progress_by_limits_that_can_be_given(empty_postgres_url: str) -> None:
    docket = a_docket(empty_postgres_url)
    assert "docket migrate" in _refused(docket, "health")
    _done(docket, "migrate")
    assert _done(docket, "health") == "healthy: no run is due\n"
    _start(docket)
    assert _json(docket, "health")["healthy"] is True
    with psycopg.connect(empty_postgres_url, autocommit=True) as connection:
        connection.execute("UPDATE docket.runs SET wake_at = now() - interval '20 seconds'")
        assert "nobody has ever scanned" in _refused(docket, "health", "--due-limit", "10")
        connection.execute("UPDATE docket.dispatch SET last_scan_at = now() - interval '20 seconds'")
    record = json.loads(_refused(docket, "health", "--due-limit", "10", "--scan-limit", "10", "--json"))
    assert record["healthy"] is False
    assert "the last scan was 0:00:2" in record["reason"]
    assert _json(docket, "health", "--due-limit", "10")["healthy"] is True
    assert _json(docket, "health")["healthy"] is True


def test_health_of_a_database_that_is_away_is_an_error() -> None:
    assert "PostgreSQL at" in _refused(a_docket("postgresql://127.0.0.1:1/nowhere?connect_timeout=2"), "health")


def test_doctor_names_each_problem_with_what_to_do_and_ends_with_1(docket: Docket) -> None:
    findings = {found["check"]: found for found in json.loads(_refused(docket, "doctor", "--json"))}
    assert findings["database"]["verdict"] == findings["schema"]["verdict"] == "fine"
    assert findings["broker"]["verdict"] == findings["workers"]["verdict"] == "problem"
    assert findings["prefetch"]["verdict"] == "warning"
    assert findings["host settings"] == {
        "check": "host settings",
        "verdict": "fine",
        "seen": "none reaches docket's tasks",
        "advice": "",
    }
    assert "Start the broker" in _refused(docket, "doctor").replace("\n", " ")


def test_doctor_sees_what_was_done_to_dockets_tasks_and_a_schema_that_is_missing(empty_postgres_url: str) -> None:
    docket = a_docket(
        empty_postgres_url,
        task_routes={"docket_celery.*": {"queue": "elsewhere"}},
    )
    docket.app.finalize()
    docket.app.tasks["docket_celery.vehicle"].time_limit = 5
    findings = {found["check"]: found for found in json.loads(_refused(docket, "doctor", "--json"))}
    assert "docket_celery.vehicle time_limit: 5, not 750.0" in findings["host settings"]["seen"]
    assert findings["schema"]["verdict"] == "problem"
    assert "ticks" not in findings


def test_doctor_of_a_database_that_is_away_says_so_and_goes_on() -> None:
    docket = a_docket("postgresql://127.0.0.1:1/nowhere?connect_timeout=2")
    findings = {found["check"]: found for found in json.loads(_refused(docket, "doctor", "--json"))}
    assert findings["database"]["verdict"] == "problem"
    assert "prefetch" in findings
    assert "schema" not in findings


def test_graphs_lists_the_latest_version_of_each(docket: Docket) -> None:
    ref = docket.save_graph(a_graph(id="listed"))
    listed = _json(docket, "graphs")
    assert {"graph_id": "listed", "graph_hash": ref.graph_hash} in [
        {key: graph[key] for key in ("graph_id", "graph_hash")} for graph in listed
    ]
    assert "listed" in _done(docket, "graphs", "--limit", "1000")
    assert "from 1 to 1000" in _refused(docket, "graphs", "--limit", "0")


def test_runs_are_filtered_and_paged(docket: Docket, asking: Run) -> None:
    started = [_start(docket).id for _ in range(3)]
    first = _json(docket, "runs", "--graph", "greeting", "--limit", "2")
    assert ([run["run_id"] for run in first["runs"]], first["has_more"]) == (started[:0:-1], True)
    second = _json(docket, "runs", "--graph", "greeting", "--limit", "1", "--before", first["next_before"])
    assert [run["run_id"] for run in second["runs"]] == started[:1]
    waiting = _json(docket, "runs", "--status", "waiting")
    assert asking.id in [run["run_id"] for run in waiting["runs"]]
    assert {run["status"] for run in waiting["runs"]} == {"waiting"}
    refused = _refused(docket, "runs", "--status", "lost", code=2)
    assert [status for status in RunStatus if status.value not in refused] == []
    for status in RunStatus:
        _json(docket, "runs", "--status", status.value)
    assert "cursor 'zzz'" in _refused(docket, "runs", "--before", "zzz")
    assert "not a valid integer" in _refused(docket, "runs", "--limit", "x", code=2)


def test_show_tells_everything_but_the_claim_token(docket: Docket, asking: Run) -> None:
    record = _json(docket, "show", asking.id)
    assert (record["run_id"], record["view"], record["graph_id"]) == (asking.id, "waiting", "question")
    assert [question["id"] for question in record["interrupts"]] == [asking.interrupts[0].id]
    assert not any("token" in key for key in record)
    table = _done(docket, "show", asking.id)
    assert "open interrupts" in table
    assert "no run 'nobody'" in _refused(docket, "show", "nobody")


def test_events_are_shown_from_a_position_on(docket: Docket, asking: Run) -> None:
    events = _json(docket, "events", asking.id)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert [event["type"] for event in events] == ["run_started", "interrupt_opened"]
    assert [event["seq"] for event in _json(docket, "events", asking.id, "--after", "1")] == [2]
    assert "interrupt_opened" in _done(docket, "events", asking.id)
    assert "after_seq" in _refused(docket, "events", asking.id, "--after", "-1")


def test_resolve_answers_with_json_and_drain_goes_on(docket: Docket, asking: Run) -> None:
    question = asking.interrupts[0].id
    assert "ANSWER must be JSON" in _refused(docket, "resolve", asking.id, question, "yes", code=2)
    assert "approved" in _refused(docket, "resolve", asking.id, question, '"yes"')
    assert "no open interrupt 'other'" in _refused(docket, "resolve", asking.id, "other", "true")
    assert docket.fetch_run(asking.id).status is RunStatus.WAITING
    assert _done(docket, "resolve", asking.id, question, "true") == f"run {asking.id} is running\n"
    assert "drained" in _done(docket, "drain")
    assert docket.fetch_run(asking.id).fields == {"approved": True}
    assert _json(docket, "show", asking.id)["view"] == "done"


def test_drain_stops_at_its_limit(docket: Docket) -> None:
    docket.drain()
    runs = [_start(docket).id for _ in range(3)]
    assert _done(docket, "drain", "--limit", "2") == "drained 2 runs\n"
    statuses = sorted(docket.fetch_run(run).status.value for run in runs)
    assert statuses == ["done", "done", "running"]
    assert _refused(docket, "drain", "--limit", "0", code=2)


def test_cancel_keeps_its_reason_and_an_ended_run_refuses_it(docket: Docket, asking: Run) -> None:
    assert _done(docket, "cancel", asking.id, "--reason", "out of stock") == f"run {asking.id} is cancelled\n"
    assert _json(docket, "events", asking.id)[-1]["data"] == {"reason": "out of stock"}
    run = _start(docket)
    docket.drain()
    assert "is done and cannot be cancelled" in _refused(docket, "cancel", run.id)


def test_retry_wakes_a_poisoned_run_and_leaves_a_healthy_one(docket: Docket, database_url: str) -> None:
    run = _start(docket)
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            "UPDATE docket.runs SET poisoned_at = now(), poison_reason = 'a test', wake_at = NULL WHERE id = %s",
            (run.id,),
        )
    assert _json(docket, "show", run.id)["view"] == "poisoned"
    assert _json(docket, "status")["poisoned"] == 1
    assert [found["run_id"] for found in _json(docket, "runs", "--poisoned")["runs"]] == [run.id]
    assert _done(docket, "retry", run.id) == f"run {run.id} is running\n"
    assert _json(docket, "show", run.id)["view"] == "ready"
    assert _done(docket, "retry", run.id) == f"run {run.id} is running\n"
    docket.drain()
    assert "is done" in _refused(docket, "retry", run.id)


def test_a_command_acts_under_the_tenant_it_is_given(docket: Docket) -> None:
    acme = docket.for_tenant("acme")
    run = acme.start_run(acme.save_graph(a_graph()), {"name": "Ada"})
    assert "no run" in _refused(docket, "show", run.id)
    assert _json(docket, "show", run.id, "--tenant", "acme")["tenant"] == "acme"
    assert [found["run_id"] for found in _json(docket, "runs", "--tenant", "acme")["runs"]] == [run.id]
    assert "tenant must be a non-empty string" in _refused(docket, "runs", "--tenant", "")


@pytest.mark.parametrize("name", ["[/red]", "[bold]x", "\x1b[2J", "line\nline", "[0,1]"], ids=ascii)
def test_a_value_is_shown_as_it_is_whatever_a_terminal_would_make_of_it(docket: Docket, name: str) -> None:
    run = docket.start_run(docket.save_graph(a_graph()), {"name": name})
    shown = _done(docket, "show", run.id)
    assert (name if name.isprintable() else json.dumps(name)) in shown
    assert "\x1b" not in shown
    assert _json(docket, "show", run.id)["fields"] == {"name": name}


@pytest.mark.parametrize(
    "command", ["runs", "show {run}", "graphs", "graphs show {graph}", "graphs show {graph} --dot"]
)
def test_a_terminal_that_lacks_a_character_is_given_its_escape(docket: Docket, command: str) -> None:
    ref = docket.save_graph(a_graph(id="bestell\u2192"))
    run = docket.start_run(ref, {"name": "Ada"})
    arguments = command.format(run=run.id, graph=ref.graph_id).split()
    ended = CliRunner(charset="latin-1").invoke(group, arguments, obj=SimpleNamespace(app=docket.app))
    assert ended.exit_code == 0, ended.exception
    assert "bestell\\u2192" in "".join(ended.output.split())


def test_an_id_is_never_cut_however_narrow_the_terminal(docket: Docket, asking: Run) -> None:
    assert asking.id in _done(docket, "runs", "--limit", "1000")
    assert asking.interrupts[0].id in _done(docket, "show", asking.id)


def test_a_list_of_runs_fits_a_narrow_terminal(docket: Docket, asking: Run) -> None:
    table = _done(docket, "runs").splitlines()
    assert max(map(len, table)) <= 80
    (row,) = [line for line in table if asking.id in line]
    assert asking.status.value in row
    assert f"{asking.started_at:%Y-%m-%d}" in row


@pytest.mark.parametrize(
    "command", ["graphs", "graphs show g", "runs", "show r", "events r", "resolve r i true", "cancel r", "retry r"]
)
def test_where_a_tenant_is_required_a_command_asks_for_its_option(command: str) -> None:
    docket = a_docket("postgresql://127.0.0.1:1/nowhere", docket_tenant_mode="required")
    assert "docket_tenant_mode is 'required': give --tenant" in _refused(docket, *command.split(), code=2)


def test_what_is_no_tenants_own_needs_none_where_one_is_required(docket: Docket) -> None:
    required = a_docket(docket.database_url, docket_tenant_mode="required", docket_run_retention=60)
    for command in ("status", "drain", "prune --dry-run"):
        _done(required, *command.split())


@pytest.mark.parametrize("limit", ["nan", "inf", "-1", "1e300"])
def test_a_limit_that_is_no_time_is_wrong_usage(docket: Docket, limit: str) -> None:
    for option in ("--due-limit", "--scan-limit"):
        assert "seconds" in _refused(docket, "health", option, limit, code=2)


@pytest.mark.parametrize("answer", ["[" * 100_000, "1" * 100_000, "{"], ids=["deep", "long", "cut off"])
def test_an_answer_that_is_no_json_is_wrong_usage_and_not_quoted_at_length(docket: Docket, answer: str) -> None:
    refused = _refused(docket, "resolve", "run", "question", answer, code=2)
    assert "ANSWER must be JSON" in refused
    assert len(refused) < 1_000


def test_usage_errors_are_told_apart(docket: Docket) -> None:
    assert "Missing argument" in _refused(docket, "show", code=2)
    assert "No such command" in _refused(docket, "shw", code=2)
    assert "No such option" in _refused(docket, "status", "--jsn", code=2)
