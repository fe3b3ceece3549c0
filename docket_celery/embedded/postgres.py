"""A PostgreSQL server of one's own: trust on loopback, a free port, the settings of a laptop."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final
from urllib.parse import quote

from docket_celery.embedded.installation import Home, Installation
from docket_celery.embedded.process import Child, StartFailed, free_port

_SETTINGS: Final = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "shared_buffers": "32MB",
    "max_connections": "100",
    "max_wal_size": "256MB",
    "log_checkpoints": "off",
}
_START_LIMIT: Final = 60.0
_SUPERUSER: Final = "postgres"


class EmbeddedPostgres:
    """One running PostgreSQL server. A context manager that stops it.

    PostgreSQL refuses to run as root; started by root it runs as the user `nobody`. Any local user may connect as its
    superuser, so keep nothing in it that others must not see.
    """

    def __init__(
        self, installation: Installation, home: Home, log: Path, port: int, settings: Mapping[str, str]
    ) -> None:
        self.port = port
        self.log = log
        self._installation = installation
        self._home = home
        self._settings = settings
        self._child = self._launch()

    @classmethod
    def start(
        cls,
        directory: str | Path,
        *,
        settings: Mapping[str, str] | None = None,
        installation: Installation | None = None,
    ) -> EmbeddedPostgres:
        """Returns once the server accepts connections.

        `directory` holds data and log and is made when missing; data found there is used again. When the server's user
        cannot reach it (a root-only directory), the data lives in a temporary one that `stop` removes. `settings` are
        PostgreSQL's own, such as `{"fsync": "off"}`. `installation` is another one than the package's. Raises
        `StartFailed`.
        """
        installation = installation or Installation.find()
        place = Path(directory).resolve()
        home = installation.home(place / "postgres")
        try:
            if not (home.path / "PG_VERSION").exists():
                _initialise(installation, home.path)
            return cls(installation, home, place / "postgres.log", free_port(), {**_SETTINGS, **(settings or {})})
        except BaseException:
            home.discard()
            raise

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def alive(self) -> bool:
        return self._child.alive

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://{_SUPERUSER}@127.0.0.1:{self.port}/{quote(database, safe='')}"

    def create_database(self, name: str, template: str | None = None) -> str:
        """Creates a database, as a copy of `template` when given, and returns its URL."""
        copied = [] if template is None else ["--template", template]
        self.tool("createdb", "--maintenance-db", self.url(), *copied, name)
        return self.url(name)

    def tool(self, name: str, *arguments: str, stdin: str = "") -> str:
        """Runs one of PostgreSQL's own programs, such as psql, to its end and returns its output. `StartFailed`, with
        the output, when it fails. Programs take a database's URL as their last argument.
        """
        return _run(self._installation, [name, *arguments], stdin)

    def restart(self) -> None:
        """The same data on the same port, after an orderly stop."""
        self._stop_server()
        self._child = self._launch()

    def stop(self) -> None:
        self._stop_server()
        self._home.discard()

    def _stop_server(self) -> None:
        self._child.stop(signal.SIGINT, signal.SIGQUIT)  # fast, then immediate shutdown

    def _launch(self) -> Child:
        chosen = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        child = Child.start(
            [self._installation.binary("postgres"), "-D", self._home.path, "-p", str(self.port), *chosen],
            name="postgres",
            log=self.log,
            env=_environment(),
            cwd="/",
            user=self._installation.user,
            death_signal=signal.SIGQUIT,
        )
        child.wait_until(lambda: _accepts(self.port), timeout=_START_LIMIT)
        return child

    def __enter__(self) -> EmbeddedPostgres:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _initialise(installation: Installation, data: Path) -> None:
    options = ["--auth", "trust", "--username", _SUPERUSER, "--encoding", "UTF8", "--locale", "C", "--no-sync"]
    _run(installation, ["initdb", "--pgdata", os.fspath(data), *options])


def _run(installation: Installation, command: Sequence[str], stdin: str = "") -> str:
    """Runs one of PostgreSQL's tools to its end, as the server's user."""
    done = subprocess.run(
        [os.fspath(installation.binary(command[0])), *command[1:]],
        input=stdin.encode(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=_environment(),
        cwd="/",
        timeout=_START_LIMIT,
        **installation.identity,
    )
    output: str = done.stdout.decode(errors="replace")
    if done.returncode != 0:
        raise StartFailed(f"{command[0]} ended with status {done.returncode}:\n{output}")
    return output


def _environment() -> dict[str, str]:
    """The caller's environment without anything that would lead PostgreSQL's tools elsewhere."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_"))}


def _accepts(port: int) -> bool:
    """Whether a session can be opened: the server answers a start-up message with an authentication request."""
    parameters = f"user\0{_SUPERUSER}\0database\0postgres\0\0".encode()
    hello = struct.pack("!ii", 8 + len(parameters), 196_608) + parameters
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5.0) as connection:
            connection.sendall(hello)
            accepted = connection.recv(1) == b"R"
            connection.sendall(b"X\0\0\0\4")
            return accepted
    except OSError:
        return False
