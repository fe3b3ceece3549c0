"""procrastinate, as the queue it is: one job for a run of one node, by asynchronous workers.

Each worker runs many jobs at a time on a pool of connections; finished jobs are kept, as by default.
"""

from __future__ import annotations

import asyncio

from procrastinate import App, PsycopgConnector

from benchmarks.peers.engine import Engine, main

AT_A_TIME = 20
"""Jobs of one worker at a time; 1 is the default."""
CONNECTIONS = 10
_ENDED = "SELECT count(*) AS n FROM procrastinate_jobs WHERE status = 'succeeded'"


class ProcrastinateEngine(Engine):
    """A run is a job."""

    name = "procrastinate"
    in_process = False

    def prepare(self) -> None:
        self._runner = asyncio.Runner()
        self._app = self._make()
        self._runner.run(self._open())

    async def _open(self) -> None:
        await self._app.open_async()
        await self._app.schema_manager.apply_schema_async()

    def _make(self) -> App:
        app = App(connector=PsycopgConnector(conninfo=self.database, min_size=CONNECTIONS, max_size=CONNECTIONS))

        @app.task(name="run")
        async def run(n: int) -> None:
            self.tally.note(n, 0)

        self._task = run
        return app

    def start(self, runs: range, field: str | None) -> None:
        self._runner.run(self._task.batch_defer_async(*({"n": n} for n in runs)))

    def serve(self, index: int) -> None:
        async def work() -> None:
            app = self._make()
            async with app.open_async():
                self.go()
                await app.run_worker_async(concurrency=AT_A_TIME)

        asyncio.run(work())

    def finished(self) -> int:
        row = self._runner.run(self._app.connector.execute_query_one_async(_ENDED))
        return int(row["n"])

    def close(self) -> None:
        self._runner.run(self._app.close_async())
        self._runner.close()


if __name__ == "__main__":
    main(ProcrastinateEngine)
