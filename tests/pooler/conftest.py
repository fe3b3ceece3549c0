"""A real PgBouncer in transaction mode. Where there is none, these tests are not collected: see `--pgbouncer`."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from support.pooled import Pooled

from docket_celery.embedded.installation import Installation, nobody, reachable_temporary
from docket_celery.embedded.postgres import EmbeddedPostgres
from docket_celery.embedded.process import Child, free_port

SERVER_SESSIONS = 2
"""Fewer than there are clients, so that their transactions keep changing sessions."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if config.getoption("--pgbouncer") is None else None


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[EmbeddedPostgres]:
    """A server of the module's own, for its log."""
    tree = pytestconfig.getoption("--postgres")
    installation = None if tree is None else Installation.at(Path(tree).resolve())
    settings = {"fsync": "off", "log_line_prefix": "%e "}
    place = tmp_path_factory.mktemp("pooled")
    with EmbeddedPostgres.start(place, settings=settings, installation=installation) as started:
        yield started


@pytest.fixture
def pooled(server: EmbeddedPostgres, pytestconfig: pytest.Config, tmp_path: Path) -> Iterator[Pooled]:
    """An empty database behind a pooler, which runs as an ordinary user."""
    direct_url = server.create_database("pooled")
    user = nobody() if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(dir=None if user is None else reachable_temporary(user)) as name:
        directory, port = Path(name), free_port()
        directory.chmod(0o755)
        settings = directory / "pgbouncer.ini"
        settings.write_text(
            f"[databases]\n* = host=127.0.0.1 port={server.port} user=postgres\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
            f"pool_mode = transaction\ndefault_pool_size = {SERVER_SESSIONS}\nserver_reset_query =\n"
        )
        child = Child.start(
            [pytestconfig.getoption("--pgbouncer"), settings], log=tmp_path / "pgbouncer.log", user=user, cwd="/"
        )
        try:
            child.wait_until(lambda: _listens(port), timeout=30)
            yield Pooled(url=f"postgresql://anybody@127.0.0.1:{port}/pooled", direct_url=direct_url, log=server.log)
        finally:
            child.stop(signal.SIGINT)
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("DROP DATABASE pooled WITH (FORCE)")


def _listens(port: int) -> bool:
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
