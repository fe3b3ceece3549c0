"""Who executed what, and when: each executed body leaves 16 bytes in a file of its process.

One small write per body, the same for every engine, and cheap beside any step. It tells whether every step was executed
exactly once, without asking the engine.
"""

from __future__ import annotations

import os
import struct
import time
from collections import Counter
from pathlib import Path

_RECORD = struct.Struct("<IId")


class Tally:
    """The bodies of one sample, in one directory, by any number of processes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[int, int] = {}

    def note(self, run: int, step: int) -> None:
        """This process has executed that step of that run, now."""
        pid = os.getpid()
        if pid not in self._files:  # Not inherited over a fork.
            place = self._directory / f"{pid}.tally"
            self._files[pid] = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(self._files[pid], _RECORD.pack(run, step, time.time()))

    def count(self) -> int:
        """Bodies so far, of all processes."""
        return sum(place.stat().st_size for place in self._directory.glob("*.tally")) // _RECORD.size

    def read(self) -> list[tuple[float, int, int]]:
        """All bodies as (instant, run, step), in the order of their instants."""
        rows = [
            (instant, run, step)
            for place in self._directory.glob("*.tally")
            for run, step, instant in _RECORD.iter_unpack(place.read_bytes())
        ]
        return sorted(rows)

    def verify(self, runs: range, steps: int) -> None:
        """Raises unless each of these runs has executed each of its steps exactly once, and nothing else was."""
        found = Counter((run, step) for _, run, step in self.read())
        expected = {(run, step) for run in runs for step in range(steps)}
        twice = sorted(key for key, count in found.items() if count > 1)
        wrong = {"missing": sorted(expected - found.keys()), "unknown": sorted(found.keys() - expected), "twice": twice}
        if any(wrong.values()):
            few = {name: keys[:5] for name, keys in wrong.items() if keys}
            raise AssertionError(f"of {len(expected)} steps (run, step): {few}")
