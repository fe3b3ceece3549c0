"""The fleet of an acceptance test: real worker and beat processes, and what must hold after a test."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
from proj.celeryapp import make_app
from support.brokers import Broker, purge

from docket_celery import Docket, Graph, Run
from docket_celery.embedded.process import Child
from docket_celery.run.events import EventType
from docket_celery.testing.containers import WorkerContainer
from docket_celery.testing.processes import WorkerOptions, start_celery

HERE = Path(__file__).parent
PATIENCE = 60.0
"""Seconds after which a fact that has not come true fails its test."""


class Fleet:
    """What a test starts, asks and checks."""

    module = "proj.celeryapp"
    release = "old"
    """Which release of the app the processes started from now on run."""

    def __init__(self, database_url: str, broker: Broker, directory: Path, settings: dict[str, Any]) -> None:
        self.database_url = database_url
        self.broker = broker
        self.settings = settings
        self._directory = directory
        self._children: list[Child] = []
        app = make_app(database_url, broker.url(), **settings)
        docket = Docket.of(app)
        assert docket is not None
        self.app = app
        self.docket = docket

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "PROJ_DATABASE_URL": self.database_url,
            "PROJ_BROKER_URL": self.broker.url(),
            "PROJ_SETTINGS": json.dumps(self.settings),
            "PROJ_RELEASE": self.release,
        }

    def celery(self, name: str, *arguments: str) -> Child:
        log = self._directory / f"{name}.log"
        child = start_celery(self.module, *arguments, log=log, env=self.environment, cwd=self._directory)
        self._children.append(child)
        return child

    def worker(
        self, name: str = "w1", *more: str, concurrency: int = 2, pool: str = "prefork", queues: str = "docket"
    ) -> Child:
        """A worker that is ready when this returns; `more` is added to its command line."""
        options = WorkerOptions(
            app=self.module,
            name=name,
            queues=queues,
            pool=pool,
            concurrency=concurrency,
            arguments=more,
            env=self.environment,
            cwd=self._directory,
        )
        worker = WorkerContainer(options, self._directory, id="test")
        self._children.append(worker.child)
        worker.ready()
        return worker.child

    def beat(self, name: str = "beat") -> Child:
        return self.celery(name, "beat", "-s", str(self._directory / f"{name}-schedule"), "-l", "INFO")

    def stop(self) -> None:
        for child in self._children:
            child.signal(signal.SIGTERM)
        for child in self._children:
            if not child.wait(20.0):
                child.kill()

    def answers(self, worker: str) -> bool:
        """Whether the worker hears what is broadcast: it says that it is ready a moment before."""
        name = f"{worker}@test"
        return bool(self.app.control.broadcast("ping", destination=[name], reply=True, timeout=5.0, limit=1))

    def signal(self, pid: int, number: signal.Signals) -> None:
        """Signals a process of one of the workers, known by a row of the probe."""
        os.kill(pid, number)

    def is_alive(self, pid: int) -> bool:
        """Whether a process of one of the workers is still there."""
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return True

    def purge(self) -> None:
        """Deletes every message in the broker."""
        purge(self.broker.url())

    def rows(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            return connection.execute(query, parameters).fetchall()

    def execute(self, *statements: str) -> None:
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    def open_gate(self, name: str) -> None:
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            connection.execute("INSERT INTO gate (name) VALUES (%s) ON CONFLICT DO NOTHING", (name,))

    def executions(self, run: Run, node: str | None = None) -> int:
        query = "SELECT count(*) FROM probe WHERE run_id = %s AND node = coalesce(%s, node)"
        return int(self.rows(query, run.id, node)[0][0])

    def start(self, graph: Graph, input: dict[str, Any] | None = None) -> Run:
        return self.docket.start_run(self.docket.save_graph(graph), input)

    def finish(self, run: Run) -> Run:
        return self.docket.await_run(run.id, timeout=PATIENCE)

    def log_of(self, *names: str) -> str:
        return "\n".join((self._directory / f"{name}.log").read_text() for name in names)

    def steals(self, *names: str) -> list[str]:
        """What the workers' ticks and nudges tell of claims that they took over."""
        return re.findall(r"'stolen': [1-9]\d*|[1-9]\d* stolen", self.log_of(*names))

    def assert_sound(self, run: Run, *, nodes: list[str]) -> None:
        """Nothing lost, nothing committed twice: the events tell exactly this one history."""
        events = self.docket.list_events(run.id, limit=1_000).events
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        stored = self.docket.fetch_run(run.id)
        assert stored.event_seq == len(events)
        completed = [(event.node, event.step) for event in events if event.type is EventType.NODE_COMPLETED]
        assert len(completed) == len(set(completed))
        assert [node for node, _ in completed] == nodes
        steps = [event.step for event in events if event.type is EventType.STEP_COMMITTED]
        assert steps == list(range(1, len(steps) + 1))
        assert [event.type for event in events].count(EventType.RUN_DONE) == 1

    def assert_invariants(self) -> None:
        """A healthy running row has exactly one of a wake and a claim; nothing of ours idles in a transaction."""
        broken = self.rows(
            "SELECT id FROM docket.runs WHERE status = 'running' AND poisoned_at IS NULL"
            " AND (wake_at IS NULL) = (claim_token IS NULL)"
        )
        assert broken == []
        idle = self.rows(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
            " AND starts_with(state, 'idle in transaction')"
            " AND state_change < clock_timestamp() - interval '1 second'"
        )
        assert idle == []


def eventually(fact: Callable[[], Any], timeout: float = PATIENCE) -> Any:
    """Waits until `fact` is true and returns it; fails the test when it does not become so."""
    deadline = time.monotonic() + timeout
    pause = threading.Event()
    while not (found := fact()):
        assert time.monotonic() < deadline, f"not within {timeout:g} s: {fact}"
        pause.wait(0.02)
    return found
