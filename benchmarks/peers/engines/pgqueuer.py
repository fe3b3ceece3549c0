"""pgqueuer, as the queue it is: one job for a run of one node, by its asynchronous worker over asyncpg and uvloop."""

from __future__ import annotations

import asyncio

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgPoolDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from benchmarks.peers.engine import Engine, main

BATCH = 100
"""Jobs that one worker takes, and logs, at a time; 10 is the default."""
CONNECTIONS = 5
_ENDED = "SELECT count(*) FROM pgqueuer_log WHERE status = 'successful'"


class PgQueuerEngine(Engine):
    """A run is a job."""

    name = "pgqueuer"
    in_process = False

    def prepare(self) -> None:
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._pool = self._runner.run(self._open())
        self._queries = Queries(AsyncpgPoolDriver(self._pool))
        self._runner.run(self._queries.install())

    async def _open(self) -> asyncpg.Pool:
        return await asyncpg.create_pool(self.database, min_size=CONNECTIONS, max_size=CONNECTIONS)

    def start(self, runs: range, field: str | None) -> None:
        payloads = [str(n).encode() for n in runs]
        self._runner.run(self._queries.enqueue(["run"] * len(runs), payloads, [0] * len(runs)))

    def serve(self, index: int) -> None:
        async def work() -> None:
            pool = await self._open()
            pgq = PgQueuer(AsyncpgPoolDriver(pool))

            @pgq.entrypoint("run")
            async def run(job: Job) -> None:
                assert job.payload is not None
                self.tally.note(int(job.payload), 0)

            self.go()
            await pgq.run(batch_size=BATCH)

        uvloop.run(work())

    def finished(self) -> int:
        return int(self._runner.run(self._pool.fetchval(_ENDED)))

    def close(self) -> None:
        self._runner.run(self._pool.close())
        self._runner.close()


if __name__ == "__main__":
    main(PgQueuerEngine)
