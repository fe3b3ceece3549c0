"""docket_celery: `drain()` in one process; beat, Redis and two solo workers as a fleet. Everything at its default."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, ClassVar

import psycopg

from benchmarks.peers.engine import Engine, main
from benchmarks.peers.engines import docket_app
from benchmarks.peers.tally import Tally
from benchmarks.peers.workloads import APPENDED, BRANCHES
from docket_celery import Docket, GraphRef
from docket_celery.storage.postgres import migrate

APP = "benchmarks.peers.engines.docket_app"


class DocketEngine(Engine):
    """Runs are started in bulk."""

    name = "docket"
    refill: ClassVar[str] = "direct"
    transport: ClassVar[dict[str, Any]] = {}
    pool: ClassVar[tuple[str, ...]] = ("-P", "solo")

    def prepare(self) -> None:
        migrate.upgrade(self.database, "docket")
        docket_app.tally = Tally(self.directory)
        alone = self.workload.workers == 1
        app = docket_app.make_app(self.database, "memory://" if alone else self.broker, self.refill, self.transport)
        docket = Docket.of(app)
        assert docket is not None
        self.app, self.docket = app, docket
        self._connection = psycopg.connect(self.database, autocommit=True)
        self._refs: dict[bool, GraphRef] = {
            beside: docket.save_graph(docket_app.graph_of(self.workload, beside))
            for beside in {False, self.workload.beside}
        }

    def start(self, runs: range, field: str | None) -> None:
        state: dict[str, Any] = {} if field is None else {"field": field}
        self.docket.start_runs(self._refs[field is not None], [{"n": n, **state} for n in runs])

    def work(self, runs: range) -> None:
        self.docket.drain()

    def workers(self) -> list[list[str]]:
        return [
            [*_celery(), "worker", "-Q", "docket", "-n", f"w{index}@peers", *self.pool, "-l", "WARNING"]
            for index in range(self.workload.workers)
        ]

    def others(self) -> list[list[str]]:
        return [[*_celery(), "beat", "-s", os.fspath(self.directory / "schedule"), "-l", "WARNING"]]

    def environment(self) -> dict[str, str]:
        return {
            docket_app.DATABASE: self.database,
            docket_app.BROKER: self.broker,
            docket_app.REFILL: self.refill,
            docket_app.TRANSPORT: json.dumps(self.transport),
            docket_app.DIRECTORY: os.fspath(self.directory),
        }

    def finished(self) -> int:
        row = self._connection.execute("SELECT count(*) FROM docket.runs WHERE status = 'done'").fetchone()
        assert row is not None
        return int(row[0])

    def check(self, runs: range) -> None:
        if self.workload.shape == "chain":
            return
        before, more = None, True
        while more:
            page = self.docket.list_runs(limit=250, before=before)
            for summary in page.runs:
                fields = self.docket.fetch_run(summary.run_id).fields
                if self.workload.shape == "fan":
                    assert fields["total"] == sum(range(BRANCHES)), fields
                else:
                    assert fields["log"] == [APPENDED] * self.workload.length
            before, more = page.next_before, page.has_more

    def close(self) -> None:
        self._connection.close()
        self.docket.storage.runs._database.sessions.close()  # type: ignore[attr-defined]


def _celery() -> list[str]:
    return [sys.executable, "-m", "celery", "-A", APP]


if __name__ == "__main__":
    main(DocketEngine)
