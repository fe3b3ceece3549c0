"""Processes in the place of containers: each answers what pytest-celery asks of Docker.

pytest-celery's nodes, clusters and setups work on these as they do on containers. Nothing here imports pytest-celery
or knows Docker.
"""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from signal import Signals
from typing import Any, Final
from uuid import uuid4

from docket_celery.embedded.process import Child
from docket_celery.embedded.redis import EmbeddedRedis
from docket_celery.testing.processes import WorkerOptions, start_celery

START_LIMIT: Final = 60.0
"""Seconds after which a program that is not ready has failed."""


class ProcessContainer(ABC):
    """A program that was started, with the vocabulary of a Docker container. Its log goes on over a restart.

    `id` is unique unless it is given; its first twelve characters are what pytest-celery takes for the host's name.
    """

    def __init__(self, name: str, id: str | None = None) -> None:
        self.name = name
        self.id = id or uuid4().hex

    @property
    @abstractmethod
    def child(self) -> Child:
        """The process; another one after a restart."""

    @abstractmethod
    def _start_again(self) -> None:
        """Makes `child` a new process, once the old one has ended."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether the process does by now what it is there for."""

    @property
    def status(self) -> str:
        return "running" if self.child.alive else "exited"

    @property
    def attrs(self) -> dict[str, Any]:
        """Some of what `docker inspect` shows, under its names."""
        ended = self.child.exit_code
        state = {
            "Status": self.status,
            "Running": ended is None,
            "Pid": self.child.pid if ended is None else 0,
            "ExitCode": 128 - ended if ended and ended < 0 else ended or 0,
        }
        return {"Id": self.id, "Name": self.name, "State": state, "Config": {"Hostname": self.id[:12]}}

    def logs(self) -> str:
        return self.child.log.read_text(errors="replace")

    def ready(self) -> bool:
        """Waits until it is; raises `StartFailed`, with the end of the log, when it has ended or is too slow."""
        self.child.wait_until(self._answers, timeout=START_LIMIT)
        return True

    def kill(self, signal: str | int | None = None) -> None:
        """Sends a signal, by name or number. SIGKILL, the default, ends the children too, as in a container."""
        number = _signal(signal)
        if number is Signals.SIGKILL:
            self.child.kill()
        else:
            self.child.signal(number)

    def restart(self, timeout: float = 10.0) -> None:
        """SIGTERM, after `timeout` seconds SIGKILL, and the same program again; ready when this returns."""
        self.child.stop(timeout=timeout)
        self._start_again()
        self.ready()

    def reload(self) -> None:  # noqa: B027
        """Nothing to do: every answer comes from the process itself."""

    def teardown(self) -> None:
        """Ends it at once, as a container is removed: nothing that it could still do matters to anybody."""
        self.child.kill()


class RedisContainer(ProcessContainer):
    """A Redis server that keeps its port, and nothing else, over a restart."""

    def __init__(self, name: str, directory: Path) -> None:
        super().__init__(name)
        self._redis = EmbeddedRedis.start(directory)

    @property
    def child(self) -> Child:
        return self._redis.child

    def _start_again(self) -> None:
        self._redis.restart()

    def _answers(self) -> bool:
        return self._redis.answers()

    @property
    def celeryconfig(self) -> dict[str, Any]:
        """Where it is. There is no network of containers, so the inner and the outer address are one."""
        url = self._redis.url()
        return {"url": url, "host_url": url, "hostname": "127.0.0.1", "port": self._redis.port, "vhost": "0"}


class CeleryContainer(ProcessContainer):
    """One of Celery's programs; ready once its log, from the last start on, holds `ready_line`."""

    def __init__(
        self,
        name: str,
        directory: Path,
        app: str,
        *arguments: str,
        ready_line: str,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        id: str | None = None,
    ) -> None:
        super().__init__(name, id)
        self._log = directory / f"{name}.log"
        self._app, self._arguments, self._env, self._cwd = app, arguments, env, cwd
        self._ready_line = ready_line
        self._start_again()

    @property
    def child(self) -> Child:
        return self._child

    def _start_again(self) -> None:
        self._begins = self._log.stat().st_size if self._log.exists() else 0
        self._child = start_celery(self._app, *self._arguments, log=self._log, env=self._env, cwd=self._cwd)

    def _answers(self) -> bool:
        return self._ready_line in self._log.read_bytes()[self._begins :].decode(errors="replace")

    @property
    def celeryconfig(self) -> dict[str, Any]:
        """Nothing: it is told where the others are, and nobody has to know where it is."""
        return {}


class WorkerContainer(CeleryContainer):
    """A worker. Its node is called NAME@HOST, where HOST is the beginning of the id."""

    def __init__(self, options: WorkerOptions, directory: Path, id: str | None = None) -> None:
        self.options = options
        id = id or uuid4().hex
        node = f"{options.name}@{id[:12]}"
        super().__init__(
            options.name,
            directory,
            options.app,
            *options.command(node),
            ready_line=f"{node} ready.",
            env=options.env,
            cwd=options.cwd,
            id=id,
        )

    def version(self) -> str:
        """Celery's."""
        return version("celery")

    def log_level(self) -> str:
        return self.options.log_level

    def worker_name(self) -> str:
        return self.options.name

    def worker_queue(self) -> str:
        return self.options.queues.partition(",")[0]


class BeatContainer(CeleryContainer):
    """A beat with a schedule file of its own, which outlives a restart."""

    def __init__(self, app: str, directory: Path, *, env: Mapping[str, str], cwd: Path | None = None) -> None:
        schedule = str(directory / "beat-schedule")
        arguments = ("beat", "--pidfile=", "-s", schedule, "-l", "INFO")
        super().__init__("beat", directory, app, *arguments, ready_line="beat: Starting...", env=env, cwd=cwd)


def _signal(named: str | int | None) -> Signals:
    """Docker takes `SIGTERM`, `TERM` and 15."""
    if named is None:
        return signal.SIGKILL
    if isinstance(named, int):
        return Signals(named)
    try:
        return Signals[f"SIG{named.removeprefix('SIG')}"]
    except KeyError:
        raise ValueError(f"there is no signal {named!r}") from None
