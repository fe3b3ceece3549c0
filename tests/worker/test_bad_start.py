"""What somebody sees who starts a worker, beat or a command on a wrong configuration: real `celery` processes."""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import psycopg
import pytest
from support.apps import Shell

from docket_celery.embedded.process import Child

WORKER = ("worker", "-Q", "docket", "-c", "1")
BEAT = ("beat", "-s", "schedule")
STATUS = ("docket", "status")


def _refused(ended: CompletedProcess[str], code: int, *parts: str) -> None:
    """Ended with this exit status, with every part in its output, and without a trace or a password."""
    assert ended.returncode == code, ended.stdout
    assert all(part in ended.stdout for part in parts), ended.stdout
    assert "Traceback" not in ended.stdout
    assert "secret" not in ended.stdout


@pytest.fixture
def nowhere(closed_port: int) -> tuple[str, str]:
    """A URL of a database that is not there, and how a message names it."""
    return f"postgresql://me:secret@127.0.0.1:{closed_port}/proj", f"127.0.0.1:{closed_port}, database proj"


@pytest.mark.parametrize("command", [WORKER, BEAT, STATUS], ids=["worker", "beat", "command"])
@pytest.mark.parametrize(
    ("option", "parts"),
    [
        ({"docket_orphan_tll": 5}, ["docket_orphan_tll", "did you mean docket_orphan_ttl?"]),
        ({"docket_poll_interval": 0}, ["docket_poll_interval", "from 1 to 3600", "got 0"]),
    ],
    ids=["unknown", "out of bounds"],
)
def test_a_wrong_option_ends_the_start_by_its_name(
    shell: Shell, nowhere: tuple[str, str], command: tuple[str, ...], option: dict[str, Any], parts: list[str]
) -> None:
    url, _ = nowhere
    ended = shell.run(*command, docket_database_url=url, **option)
    _refused(ended, 1, *parts)
    assert ended.stdout.count(parts[0]) == 1, "told twice"


@pytest.mark.parametrize("command", [WORKER, STATUS], ids=["worker", "command"])
def test_a_missing_schema_ends_the_start_with_the_command_to_run(
    shell: Shell, command: tuple[str, ...], empty_postgres_url: str
) -> None:
    ended = shell.run(*command, docket_database_url=empty_postgres_url)
    _refused(ended, 1, "schema 'docket'", "run `celery -A proj docket migrate`")


@pytest.mark.parametrize(
    ("stored", "cure"), [("0999", "install a newer release"), ("0000", "docket migrate")], ids=["newer", "older"]
)
def test_a_schema_of_another_release_ends_the_start_with_both_versions_and_the_cure(
    shell: Shell, postgres_url: str, stored: str, cure: str
) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("UPDATE docket.alembic_version SET version_num = %s", (stored,))
    _refused(shell.run(*WORKER, docket_database_url=postgres_url), 1, f"has version {stored}", "needs version", cure)
    _refused(shell.run("docket", "migrate", "--check", docket_database_url=postgres_url), 1, stored, cure)


def _log_until(shell: Shell, directory: Path, saying: str, *command: str, **settings: Any) -> str:
    """The log of a process that would run on, from its start until it has said this, and its end."""
    log = directory / "process.log"
    child = Child.start(
        [sys.executable, "-m", "celery", "-A", "proj", *command],
        log=log,
        env=shell.environment(settings),
        cwd=directory,
    )
    try:
        child.wait_until(lambda: saying in log.read_text(), timeout=120.0)
    finally:
        child.stop(timeout=20.0)
    return log.read_text()


def test_a_worker_of_other_queues_says_that_it_takes_no_leases(shell: Shell, postgres_url: str, tmp_path: Path) -> None:
    command = ("worker", "-c", "1", "-l", "INFO")
    assert "'docket' (-Q)" in _log_until(shell, tmp_path, "no leases", *command, docket_database_url=postgres_url)


def test_a_worker_that_would_drop_every_message_unread_ends_its_start(shell: Shell, postgres_url: str) -> None:
    ended = shell.run(*WORKER, docket_database_url=postgres_url, accept_content=["application/x-yaml"])
    _refused(ended, 1, "accept_content is ['application/x-yaml']", "add 'json'")


def test_a_worker_of_other_queues_may_accept_what_it_likes(shell: Shell, postgres_url: str, tmp_path: Path) -> None:
    settings = {"docket_database_url": postgres_url, "accept_content": ["application/x-yaml"]}
    assert "accept_content" not in _log_until(
        shell, tmp_path, "no leases", "worker", "-c", "1", "-l", "INFO", **settings
    )


def test_a_worker_starts_without_the_database_and_says_so(
    shell: Shell, tmp_path: Path, nowhere: tuple[str, str]
) -> None:
    url, place = nowhere
    output = _log_until(shell, tmp_path, "starting without the database", *WORKER, docket_database_url=url)
    assert place in output
    assert "secret" not in output


@pytest.mark.parametrize(
    "command", [STATUS, ("docket", "migrate"), ("docket", "migrate", "--check"), ("docket", "drain")], ids=" ".join
)
def test_a_command_names_an_unreachable_database_soon(
    shell: Shell, nowhere: tuple[str, str], command: tuple[str, ...]
) -> None:
    url, place = nowhere
    began = time.monotonic()
    _refused(shell.run(*command, docket_database_url=url), 1, place)
    assert time.monotonic() - began < 20.0


def test_a_worker_and_a_command_ask_for_a_database_that_is_not_set(shell: Shell) -> None:
    _refused(shell.run(*WORKER), 1, "docket_database_url is not set")
    _refused(shell.run(*STATUS), 1, "docket_database_url is not set")


def test_a_node_module_that_does_not_exist_ends_the_start_by_its_name(shell: Shell, postgres_url: str) -> None:
    ended = shell.run(*WORKER, docket_database_url=postgres_url, docket_node_modules=["proj", "no.such.module"])
    _refused(ended, 1, "docket_node_modules", "'no.such.module'")


def test_an_app_without_docket_is_told_to_make_one(shell: Shell) -> None:
    _refused(shell.run(*STATUS, docket=False), 2, "app 'proj' has no Docket", "Docket(app)")


def test_the_commands_ask_for_an_app(shell: Shell) -> None:
    _refused(shell.run(*STATUS, app=None), 2, "has no Docket", "-A")


def test_the_help_is_there_without_an_app(shell: Shell) -> None:
    ended = shell.run("docket", "--help", app=None)
    assert ended.returncode == 0
    assert "Answer an open interrupt" in ended.stdout


def test_an_answer_that_is_no_json_is_quoted_before_anything_is_asked(shell: Shell, nowhere: tuple[str, str]) -> None:
    url, _ = nowhere
    ended = shell.run("docket", "resolve", "run", "interrupt", "{yes", docket_database_url=url)
    _refused(ended, 2, "ANSWER must be JSON", "'{yes'")


def test_a_half_open_database_does_not_hold_a_command_for_ever(shell: Shell) -> None:
    """A listener that accepts and never answers, as behind a broken proxy."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        began = time.monotonic()
        ended = shell.run(*STATUS, docket_database_url=f"postgresql://me:secret@127.0.0.1:{port}/proj", timeout=60.0)
        assert time.monotonic() - began < 45.0
    _refused(ended, 1, f"127.0.0.1:{port}, database proj")
