"""The command line that the benchmarks share: options of their own, a table, and a JSON file if asked for."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.machine import write

Report = Callable[[list[dict[str, Any]]], None]
"""Prints figures as a table."""


def parser(description: str | None) -> argparse.ArgumentParser:
    """A command line with `--json FILE`, to which a benchmark adds its own options."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", type=Path, default=None, help="where to write the figures and the machine")
    return made


def conclude(rows: list[dict[str, Any]], report: Report, file: Path | None) -> None:
    """Prints the figures, and writes them if there is a file to write to."""
    report(rows)
    if file is not None:
        write(file, rows)
