"""What is run: the shape of each workload, how many runs of it, and what every step of it must have left behind."""

from __future__ import annotations

import random
import string
from dataclasses import dataclass, replace
from typing import Literal

Shape = Literal["chain", "fan", "append", "wake"]
Size = Literal["full", "quick", "smallest"]

BRANCHES = 8
APPENDS = 200
_LETTERS = random.Random(1).choices(string.ascii_letters + string.digits, k=1_000_000)
FIELD = "".join(_LETTERS)
"""One megabyte that no step touches: letters at random, which no database compresses."""
APPENDED = FIELD[:1_000]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A number of equal runs.

    length    nodes of a chain, branches of a fan, rounds of a loop
    workers   processes that carry the runs on; 1 is the engine's own process where it has no need of a fleet
    beside    whether the same runs are taken once more with a megabyte in their state that no step touches
    """

    name: str
    title: str
    unit: str
    shape: Shape
    length: int
    workers: int
    runs: int
    beside: bool = False

    @property
    def steps(self) -> int:
        """Bodies that one run executes."""
        return self.length + (self.shape == "fan")

    @property
    def per_run(self) -> int:
        """Units that one run counts for."""
        return self.steps if self.unit == "steps" else 1


_FULL = (
    Workload(name="chain100", title="100-node chain, one process", unit="steps",
             shape="chain", length=100, workers=1, runs=60),
    Workload(name="chains10", title="10-node chains, two workers", unit="steps",
             shape="chain", length=10, workers=2, runs=1_000),
    Workload(name="drain", title="one-node runs, queued before two workers start", unit="runs",
             shape="chain", length=1, workers=2, runs=10_000),
    Workload(name="fan", title="8-way fan-out and join, two workers", unit="workflows",
             shape="fan", length=BRANCHES, workers=2, runs=500),
    Workload(name="append", title="loop that appends 1 KB, 200 times", unit="steps",
             shape="append", length=APPENDS, workers=1, runs=3),
    Workload(name="beside", title="10-node chain beside an untouched 1 MB", unit="steps",
             shape="chain", length=10, workers=1, runs=50, beside=True),
    Workload(name="wake", title="wake of an idle fleet", unit="wakes",
             shape="wake", length=1, workers=2, runs=30),
)  # fmt: skip

_RUNS: dict[Size, dict[str, int]] = {
    "full": {},
    "quick": {"chain100": 5, "chains10": 100, "drain": 1_000, "fan": 60, "append": 1, "beside": 10, "wake": 5},
    "smallest": {"chain100": 1, "chains10": 10, "drain": 50, "fan": 5, "append": 1, "beside": 2, "wake": 1},
}


def workloads(size: Size) -> dict[str, Workload]:
    """All workloads by name, with the number of runs of that size."""
    return {work.name: replace(work, runs=_RUNS[size].get(work.name, work.runs)) for work in _FULL}
