"""What the audit found: a table on the terminal, and a CSV and an HTML file to keep."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from examples.license_audit.page import render
from examples.license_audit.spdx import CATEGORIES

Entry = Mapping[str, Any]
"""What the node `record` wrote about one distribution."""

_COLUMNS: Final = (
    *("name", "version", "licence", "category", "standing", "risk", "files", "bytes"),
    *("native", "mismatches", "missing", "tree_sha256", "editable"),
)
_WORST: Final = 12
_NOTEWORTHY: Final = 10
"""Points from which a distribution is shown on the terminal."""


def by_risk(entries: Sequence[Entry]) -> list[Entry]:
    """The riskiest first, then by name."""
    return sorted(entries, key=lambda entry: (-entry["risk"], entry["name"].lower()))


def totals(entries: Sequence[Entry]) -> dict[str, tuple[int, int]]:
    """Distributions and bytes of each category that occurs, from the mildest to the strictest."""
    found = {}
    for category in CATEGORIES:
        mine = [entry for entry in entries if entry["category"] == category]
        if mine:
            found[category] = (len(mine), sum(entry["bytes"] for entry in mine))
    return found


def show(entries: Sequence[Entry], console: Console) -> None:
    """The short form: totals, and what deserves a look."""
    kinds = Table(title="licences", title_justify="left")
    kinds.add_column("category")
    kinds.add_column("distributions", justify="right")
    kinds.add_column("size", justify="right")
    for category, (count, size) in totals(entries).items():
        kinds.add_row(category, str(count), human(size))
    console.print(kinds)
    worst = Table(title="worth a look", title_justify="left")
    for heading in ("risk", "distribution", "licence", "why"):
        worst.add_column(heading, justify="right" if heading == "risk" else "left", overflow="fold")
    for entry in by_risk(entries)[:_WORST]:
        if entry["risk"] >= _NOTEWORTHY:
            why = "; ".join(words for _, words in entry["reasons"])
            worst.add_row(str(entry["risk"]), f"{entry['name']} {entry['version']}", entry["licence"], why)
    console.print(worst)


def write(entries: Sequence[Entry], directory: Path, context: Mapping[str, str]) -> tuple[Path, Path]:
    """Writes both files, replacing earlier ones, and returns their paths: HTML, then CSV."""
    directory.mkdir(parents=True, exist_ok=True)
    page, table = directory / "report.html", directory / "report.csv"
    page.write_text(render(by_risk(entries), totals(entries), context, human), encoding="utf-8")
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*_COLUMNS, "verdict", "reasons"])
        for entry in by_risk(entries):
            verdict = entry["verdict"]
            decided = "" if verdict is None else "accepted" if verdict["accept"] else "rejected"
            reasons = "; ".join(f"{points}: {words}" for points, words in entry["reasons"])
            writer.writerow([*(_spreadsheet_safe(entry[column]) for column in _COLUMNS), decided, reasons])
    return page, table


def human(size: int) -> str:
    """Bytes as people read them."""
    amount = float(size)
    for unit in ("B", "KB", "MB"):
        if amount < 1_000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1_000
    return f"{amount:.1f} GB"


def _spreadsheet_safe(value: Any) -> Any:
    """Text that a spreadsheet would run as a formula is quoted: names and licences are other people's words."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@")) else value
