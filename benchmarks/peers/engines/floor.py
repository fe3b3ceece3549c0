"""The floor: one bare prepared statement per superstep: it updates a row and inserts two events, and that is all."""

from __future__ import annotations

import time

import psycopg

from benchmarks.floor import STATE, STEP, TABLES
from benchmarks.peers.engine import Engine, main

_RUNS = "INSERT INTO floor_run SELECT n, 0, 'token', '{}', '{}' FROM generate_series(%s::int, %s) n"


class Floor(Engine):
    """One client per worker, each with its share of the runs. A fan is two supersteps: its branches, and the join."""

    name = "floor"

    def prepare(self) -> None:
        self._connection = psycopg.connect(self.database, autocommit=True)
        self._connection.execute(TABLES)

    def start(self, runs: range, field: str | None) -> None:
        self._connection.execute(_RUNS, (runs.start, runs.stop - 1))

    def work(self, runs: range) -> None:
        self._carry_on(self._connection, runs)

    def serve(self, index: int) -> None:
        with psycopg.connect(self.database, autocommit=True) as connection:
            self.go()
            self._carry_on(connection, range(index, self.workload.runs, self.workload.workers))
            while True:
                time.sleep(60)

    def _carry_on(self, connection: psycopg.Connection, runs: range) -> None:
        with connection.cursor() as cursor:
            for run in runs:
                for seq, steps in enumerate(self._supersteps()):
                    for step in steps:
                        self.tally.note(run, step)
                    cursor.execute(STEP, (STATE, run, seq, 2 * seq, 2 * seq + 1), prepare=True)

    def _supersteps(self) -> list[range]:
        if self.workload.shape == "fan":
            return [range(self.workload.length), range(self.workload.length, self.workload.steps)]
        return [range(step, step + 1) for step in range(self.workload.length)]

    def finished(self) -> int:
        query = "SELECT count(*) FROM floor_run WHERE seq = %s"
        row = self._connection.execute(query, [len(self._supersteps())]).fetchone()
        assert row is not None
        return int(row[0])

    def close(self) -> None:
        self._connection.close()


if __name__ == "__main__":
    main(Floor)
