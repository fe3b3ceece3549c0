"""Plain Celery: chains and chords over Redis, acknowledged early. Nothing is durable: it is the price of nothing."""

from __future__ import annotations

import os
import sys
from typing import Any

from benchmarks.peers.engine import Engine, main
from benchmarks.peers.engines import celery_app

APP = "benchmarks.peers.engines.celery_app"


class CeleryEngine(Engine):
    """Solo workers, without gossip, mingle and heartbeats."""

    name = "celery"
    in_process = False

    def prepare(self) -> None:
        celery_app.app.conf.broker_url = self.broker
        celery_app.app.conf.result_backend = self.broker.removesuffix("/0") + "/1"

    def start(self, runs: range, field: str | None) -> None:
        import celery

        with (
            celery_app.app.pool.acquire(block=True) as connection,
            celery_app.app.amqp.Producer(connection) as producer,
        ):
            for n in runs:
                work: Any
                if self.workload.shape == "fan":
                    parts = [celery_app.part.si(n, step) for step in range(self.workload.length)]
                    work = celery.chord(parts, celery_app.join.s(n, self.workload.length))
                elif self.workload.length == 1:
                    work = celery_app.no_op.si(n, 0)
                else:
                    work = celery.chain(celery_app.no_op.si(n, step) for step in range(self.workload.length))
                work.apply_async(producer=producer)

    def workers(self) -> list[list[str]]:
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "-P", "solo", "-l", "WARNING"]
        return [
            [sys.executable, "-m", "celery", "-A", APP, "worker", "-n", f"w{index}@peers", *quiet]
            for index in range(self.workload.workers)
        ]

    def environment(self) -> dict[str, str]:
        return {celery_app.BROKER: self.broker, celery_app.DIRECTORY: os.fspath(self.directory)}

    def finished(self) -> int:
        return self.workload.runs  # Nothing remembers it: a body that was executed is all that can be known.


if __name__ == "__main__":
    main(CeleryEngine)
