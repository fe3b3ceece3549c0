"""The processes of the try-out: database, broker, workers and beat, all children of this one, all stopped by pid."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from docket_celery.embedded.postgres import EmbeddedPostgres
from docket_celery.embedded.process import Child
from docket_celery.embedded.redis import EmbeddedRedis, find_redis_server
from examples.license_audit import ledger

APP: Final = "examples.license_audit.app"
ROOT: Final = Path(__file__).resolve().parents[2]
QUEUE: Final = "docket"


class Fleet:
    """Starts what the audit needs and ends it all on leaving, in the reverse order. Use as a context manager."""

    def __init__(self, directory: Path, database_url: str | None, broker_url: str | None, concurrency: int) -> None:
        self.directory = directory
        self.ledger = directory / "ledger.jsonl"
        self.workers: list[Child] = []
        self.notes: list[str] = []
        self._concurrency = concurrency
        self._started = 0
        self._servers: list[EmbeddedPostgres | EmbeddedRedis] = []
        self._beat: Child | None = None
        self.database_url = database_url
        self.broker_url = broker_url

    def start_servers(self) -> None:
        """Starts whichever of database and broker was not given."""
        if self.database_url is None:
            postgres = EmbeddedPostgres.start(self.directory)
            self._servers.append(postgres)
            self.database_url = postgres.create_database("license_audit")
        if self.broker_url is None:
            if find_redis_server() is None:
                for name in ("messages", "processed", "control"):
                    (self.directory / "broker" / name).mkdir(parents=True)
                self.broker_url = f"filesystem://{self.directory / 'broker'}"
                self.notes.append(
                    "no Redis binary here: the broker is a directory of files (kombu's filesystem transport)"
                )
            else:
                redis = EmbeddedRedis.start(self.directory)
                self._servers.append(redis)
                self.broker_url = redis.url()

    @property
    def environment(self) -> dict[str, str]:
        """What makes a process part of this fleet."""
        assert self.database_url is not None
        assert self.broker_url is not None
        return {
            "LICENSE_AUDIT_DATABASE_URL": self.database_url,
            "LICENSE_AUDIT_BROKER_URL": self.broker_url,
            ledger.VARIABLE: str(self.ledger),
        }

    def celery(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "celery", "-A", APP, *arguments]

    def command(self, *arguments: str) -> str:
        """Runs one `celery` command to its end and returns its output; a failing one ends the try-out."""
        done = subprocess.run(
            self.celery(*arguments), cwd=ROOT, env=self._full_environment(), capture_output=True, text=True, timeout=60
        )
        if done.returncode != 0:
            raise RuntimeError(f"celery {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    def start_beat(self) -> None:
        schedule = str(self.directory / "beat-schedule")
        self._beat = self._child("beat", ["beat", "--pidfile=", "-s", schedule, "-l", "INFO"])

    def start_worker(self) -> None:
        """One more worker, whose name no earlier one had."""
        self._started += 1
        name = f"worker{self._started}"
        options = ["-n", f"{name}@audit", "-Q", QUEUE, "-c", str(self._concurrency), "-l", "INFO"]
        self.workers.append(self._child(name, ["worker", *options, "--without-gossip", "--without-mingle"]))

    def fallen(self) -> Child | None:
        """A process that should be running and is not."""
        processes = [*self.workers, *([self._beat] if self._beat else [])]
        return next((process for process in processes if not process.alive), None)

    def remove(self, worker: Child) -> None:
        """SIGKILL to the worker and all its children."""
        self.workers.remove(worker)
        worker.kill()

    def keep_logs(self, directory: Path) -> Path:
        """Copies what the processes wrote to `directory`, which outlives the fleet's own."""
        directory.mkdir(parents=True, exist_ok=True)
        for path in (*self.directory.glob("*.log"), *self.directory.glob("*.jsonl")):
            shutil.copy(path, directory)
        return directory

    def stop(self) -> None:
        """Ends everything that was started here; safe to call at any point and more than once."""
        clients = [*self.workers, *([self._beat] if self._beat else [])]
        for process in clients:
            process.signal(signal.SIGTERM)
        for process in clients:
            process.stop(timeout=5.0)
        for server in reversed(self._servers):
            server.stop()
        self.workers, self._beat, self._servers = [], None, []

    def _child(self, name: str, arguments: Sequence[str]) -> Child:
        log = self.directory / f"{name}.log"
        return Child.start(self.celery(*arguments), name=name, log=log, cwd=ROOT, env=self._full_environment())

    def _full_environment(self) -> dict[str, str]:
        return {**os.environ, **self.environment}

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *unused: object) -> None:
        self.stop()
