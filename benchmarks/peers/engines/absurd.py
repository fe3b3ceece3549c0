"""Absurd: tasks with checkpointed steps in PostgreSQL, by its synchronous SDK.

Each worker process has its one connection, as the SDK's own worker does, and claims many tasks at a time. The branches
of a fan are steps of one task, which the SDK runs one after the other: far fewer writes than a child task for each.
"""

from __future__ import annotations

from typing import Any

import absurdctl
import psycopg
from absurd_sdk import Absurd, TaskContext

from benchmarks.peers.engine import Engine, main
from benchmarks.peers.workloads import APPENDED, BRANCHES

QUEUE = "peers"
BATCH = 20
POLL = 0.01
"""Seconds; the SDK's default is 0.25."""
_ENDED = "SELECT count(*) FROM absurd.t_peers WHERE state = 'completed'"


class AbsurdEngine(Engine):
    """A run is a task, a node is a step of it."""

    name = "absurd"

    def prepare(self) -> None:
        self._connection = psycopg.connect(self.database, autocommit=True)
        self._connection.execute(absurdctl.BUNDLED_SCHEMA_SQL)
        self._app = self._make()
        self._app.create_queue()

    def _make(self) -> Absurd:
        app = Absurd(self.database, queue_name=QUEUE)
        body = {"chain": self._chain, "fan": self._fan, "append": self._append}[self.workload.shape]
        app.register_task("run")(body)
        return app

    def start(self, runs: range, field: str | None) -> None:
        state = {} if field is None else {"field": field}
        for n in runs:
            self._app.spawn("run", {"n": n, **state})

    def work(self, runs: range) -> None:
        while self.finished() < runs.stop:
            self._app.work_batch(claim_timeout=600, batch_size=len(runs))

    def serve(self, index: int) -> None:
        app = self._make()
        app.fetch_task_result("00000000-0000-0000-0000-000000000000")
        self.go()
        app.start_worker(claim_timeout=600, batch_size=BATCH, poll_interval=POLL)

    def finished(self) -> int:
        row = self._connection.execute(_ENDED).fetchone()
        assert row is not None
        return int(row[0])

    def check(self, runs: range) -> None:
        expected = {"chain": None, "fan": sum(range(BRANCHES)), "append": len(APPENDED) * self.workload.length}
        query = "SELECT DISTINCT completed_payload FROM absurd.t_peers"
        found = self._connection.execute(query).fetchall()
        assert found == [(expected[self.workload.shape],)], found

    def close(self) -> None:
        self._app.close()
        self._connection.close()

    def _chain(self, params: Any, ctx: TaskContext) -> None:
        for step in range(self.workload.length):
            ctx.step(f"n{step:03}", lambda step=step: self.tally.note(params["n"], step))

    def _append(self, params: Any, ctx: TaskContext) -> int:
        log: list[str] = []
        for step in range(self.workload.length):
            log.append(ctx.step("append", lambda step=step: self.tally.note(params["n"], step) or APPENDED))
        return sum(map(len, log))

    def _fan(self, params: Any, ctx: TaskContext) -> int:
        n = params["n"]
        parts = [self._part(ctx, n, step) for step in range(BRANCHES)]

        def join() -> int:
            self.tally.note(n, BRANCHES)
            return sum(parts)

        return ctx.step("join", join)

    def _part(self, ctx: TaskContext, n: int, step: int) -> int:
        def part() -> int:
            self.tally.note(n, step)
            return step

        return ctx.step(f"b{step}", part)


if __name__ == "__main__":
    main(AbsurdEngine)
