"""DBOS Transact: workflows whose steps are recorded in PostgreSQL, taken from a queue.

The queue is polled far more often than the default of once a second, a process takes many workflows at a time, and has
a connection for each of them. Workflows are plain functions; those that fan out are `async`, and gather their steps.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import psycopg
from dbos import DBOS, DBOSClient
from sqlalchemy import create_engine

from benchmarks.peers.engine import Engine, main
from benchmarks.peers.tally import Tally
from benchmarks.peers.workloads import APPENDED, BRANCHES, Workload

QUEUE, VERSION = "peers", "1"
POLL = 0.02
"""Seconds; the default is 1.0."""
AT_A_TIME = 20
"""Workflows that one process takes and has under way at a time; 100 and 300 were no faster."""
_ENDED = "SELECT count(*) FROM dbos.workflow_status WHERE status = 'SUCCESS'"


class DBOSEngine(Engine):
    """A run is a workflow, a node is a step of it."""

    name = "dbos"

    def prepare(self) -> None:
        self._connection = psycopg.connect(self.database, autocommit=True)
        self._launch(listen=self.workload.workers == 1)
        self._queue = DBOS.register_queue(QUEUE, worker_concurrency=AT_A_TIME, polling_interval_sec=POLL)
        self._client = DBOSClient(system_database_url=self._url)
        self._sql = create_engine(self._url)
        if self.workload.workers == 1:
            self._await_queue()

    @property
    def _url(self) -> str:
        return self.database.replace("postgresql://", "postgresql+psycopg://")

    def _launch(self, listen: bool) -> None:
        DBOS(
            config={
                "name": "peers",
                "system_database_url": self._url,
                "sys_db_pool_size": AT_A_TIME,
                "application_version": VERSION,
                "executor_id": str(os.getpid()),
                "log_level": "WARNING",
            }
        )
        _declare(self.workload, self.tally)
        DBOS.listen_queues([QUEUE] if listen else [])
        DBOS.launch()

    def _await_queue(self) -> None:
        """DBOS looks for new queues once a second: one empty workflow goes ahead, outside the clock."""
        handle: Any = self._client.enqueue(
            {"workflow_name": "nothing", "queue_name": QUEUE, "app_version": VERSION, "workflow_id": "nothing"}
        )
        handle.get_result()
        self._connection.execute("DELETE FROM dbos.workflow_status")

    def start(self, runs: range, field: str | None) -> None:
        if self.workload.workers == 1:
            self._queue.set_worker_concurrency(0)
            time.sleep(5 * POLL)
        with self._sql.begin() as transaction:
            for n in runs:
                self._client.enqueue_in_transaction(
                    transaction,
                    {"workflow_name": "run", "queue_name": QUEUE, "app_version": VERSION, "workflow_id": str(n)},
                    n,
                    field,
                )

    def work(self, runs: range) -> None:
        self._queue.set_worker_concurrency(AT_A_TIME)
        while self.finished() < runs.stop:
            time.sleep(0.005)

    def serve(self, index: int) -> None:
        self.go()
        self._launch(listen=True)
        while True:
            time.sleep(60)

    def finished(self) -> int:
        row = self._connection.execute(_ENDED).fetchone()
        assert row is not None
        return int(row[0])

    def check(self, runs: range) -> None:
        expected = {"chain": None, "fan": sum(range(BRANCHES)), "append": len(APPENDED) * self.workload.length}
        for n in runs:
            found = self._client.retrieve_workflow(str(n)).get_result()
            assert found == expected[self.workload.shape], (n, found)

    def close(self) -> None:
        self._client.destroy()
        self._sql.dispose()
        DBOS.destroy()
        self._connection.close()


def _declare(workload: Workload, tally: Tally) -> None:
    """The workflow of this workload and its steps, which DBOS takes only as plain functions."""

    @DBOS.step()
    def no_op(n: int, step: int) -> None:
        tally.note(n, step)

    @DBOS.step()
    def line(n: int, step: int) -> str:
        tally.note(n, step)
        return APPENDED

    @DBOS.step()
    async def part(n: int, step: int) -> int:
        tally.note(n, step)
        return step

    @DBOS.step()
    async def join(n: int, parts: list[int]) -> int:
        tally.note(n, BRANCHES)
        return sum(parts)

    def chain(n: int, field: str | None) -> None:
        for step in range(workload.length):
            no_op(n, step)

    def append(n: int, field: str | None) -> int:
        return sum([len(line(n, step)) for step in range(workload.length)])

    async def fan(n: int, field: str | None) -> int:
        return await join(n, list(await asyncio.gather(*(part(n, step) for step in range(BRANCHES)))))

    bodies: dict[str, Any] = {"chain": chain, "fan": fan, "append": append}
    DBOS.workflow(name="run")(bodies[workload.shape])
    DBOS.workflow(name="nothing")(_nothing)


def _nothing() -> None:
    """A workflow that says that the queue is heard."""


if __name__ == "__main__":
    main(DBOSEngine)
