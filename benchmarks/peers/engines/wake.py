"""How fast an idle fleet of docket_celery wakes: by a start, and by an answer, beside one plain hop to its workers."""

from __future__ import annotations

import statistics
import time
from typing import Any

from benchmarks.peers.engine import PATIENCE, Fleet, main
from benchmarks.peers.engines import docket_app
from benchmarks.peers.engines.docket import DocketEngine

IDLE = 1.1
"""Seconds of rest before each wake: more than the dispatcher's interval, so that nothing is under way."""
_WARM = 20
"""Wakes before those that count, one right after the other: a session plans a statement anew at its first five uses."""
_HOPS = 1_000_000
"""Hops are told from runs by their numbers."""


class Wake(DocketEngine):
    """Start to the first node, answer to the next node, `delay()` to the body of a task; in turns."""

    name = "wake"

    def workers(self) -> list[list[str]]:
        return [
            [f"docket,{docket_app.HOPS}" if part == "docket" else part for part in command]
            for command in super().workers()
        ]

    def measure(self) -> dict[str, Any]:
        self.prepare()
        warm = min(self.workload.runs, _WARM)
        taken: dict[str, list[float]] = {"start": [], "resolve": [], "hop": []}
        try:
            with Fleet(self) as fleet:
                fleet.release()
                for n in range(warm + self.workload.runs):
                    for name, wake in (("start", self._start), ("resolve", self._resolve), ("hop", self._hop)):
                        time.sleep(IDLE if n >= warm else 0.0)
                        taken[name].append(wake(n))
            assert self.finished() == warm + self.workload.runs
        finally:
            self.close()
        spans = {name: sorted(found[warm:]) for name, found in taken.items()}
        return {
            name: {"p50": statistics.median(found), "p95": found[min(len(found) * 95 // 100, len(found) - 1)]}
            for name, found in spans.items()
        }

    def _start(self, n: int) -> float:
        began = time.time()
        self._run = self.docket.start_run(self._refs[False], {"n": n})
        return self._seen(n, 0) - began

    def _resolve(self, n: int) -> float:
        run = self.docket.await_run(self._run.id, timeout=PATIENCE)
        began = time.time()
        self.docket.resolve_interrupt(run.id, run.interrupts[0].id, 1)
        instant = self._seen(n, 1)
        self.docket.await_run(run.id, timeout=PATIENCE)
        return instant - began

    def _hop(self, n: int) -> float:
        began = time.time()
        self.app.tasks["peers.hop"].delay(_HOPS + n, 0)
        return self._seen(_HOPS + n, 0) - began

    def _seen(self, run: int, step: int) -> float:
        """The instant at which that body ran, once it has."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            for instant, *body in reversed(self.tally.read()):
                if body == [run, step]:
                    return instant
            time.sleep(0.01)
        raise RuntimeError(f"run {run} has not come to step {step}")


if __name__ == "__main__":
    main(Wake)
