"""The figures as tables: on the terminal, and as Markdown between the two markers of docs/performance.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.peers.contest import CONTESTANTS
from benchmarks.peers.reach import GOALS, Figures, best
from benchmarks.peers.workloads import Workload

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """One table: a title, the names of its columns, and its rows as text."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def sheets(works: Sequence[Workload], figures: Figures) -> list[Sheet]:
    """All tables, in the order of the workloads, and what was to be reached."""
    found = [_sheet(work, figures) for work in works if work.name in figures and work.shape != "wake"]
    if "wake" in figures:
        found.append(_wake(figures["wake"]["wake"]))
    return [*found, _goals(figures)]


def _sheet(work: Workload, figures: Figures) -> Sheet:
    rows = figures[work.name]
    floor, durable = best(figures, work.name, "floor"), best(figures, work.name, "durable")
    latencies = any("p50" in row for row in rows.values())
    columns = [f"{work.runs:,} x {work.title}", f"{work.unit}/s", "of the floor", "of the best durable peer",
               "log, bytes/step", "tables, bytes/step"]  # fmt: skip
    columns += ["p50 / p95 / p99, s"] if latencies else []
    columns += ["last 50 of first 50"] if work.shape == "append" else []
    columns += ["without the field, per s", "of that"] if work.beside else []
    lines = []
    for name, row in rows.items():
        speed = row["per_second"]
        line = [CONTESTANTS[name].title, f"{speed:,.0f}", _share(speed, floor), _share(speed, durable),
                f"{row['wal_per_step']:,.0f}", f"{row['table_bytes_per_step']:,.0f}"]  # fmt: skip
        if latencies:
            line.append(" / ".join(f"{row[key]:.2f}" for key in ("p50", "p95", "p99")) if "p50" in row else "")
        if work.shape == "append":
            line.append(f"{row['last_over_first']:.2f}")
        if work.beside:
            line += [f"{row['plain']['per_second']:,.0f}", f"{row['of_plain']:.2f}"]
        lines.append(tuple(line))
    return Sheet(title=work.name, columns=tuple(columns), rows=tuple(lines))


def _share(speed: float, other: tuple[str, float] | None) -> str:
    return "" if other is None else f"{speed / other[1]:.2f}"


def _wake(row: Mapping[str, Mapping[str, float]]) -> Sheet:
    names = {"hop": "plain Celery: delay() to the task", "start": "start to the first node",
             "resolve": "answer to the next node"}  # fmt: skip
    hop = row["hop"]["p50"]
    lines = tuple(
        (title, *(f"{row[key][share] * 1e3:.1f}" for share in ("p50", "p95")),
         *(f"{row[key][share] / hop:.1f}" for share in ("p50", "p95")))
        for key, title in names.items()
    )  # fmt: skip
    return Sheet(title="wake", columns=("an idle fleet", "p50, ms", "p95, ms", "p50, hops", "p95, hops"), rows=lines)


def _goals(figures: Figures) -> Sheet:
    lines = []
    for goal in GOALS:
        value = goal.found(figures)
        said = {True: "yes", False: "no", None: "not taken"}[goal.reached(figures)]
        bound = f"{'at most' if goal.at_most else 'at least'} {goal.bound:g} {goal.unit}"
        lines.append((goal.what, bound, "" if value is None else f"{value:.2f} {goal.unit}", said))
    return Sheet(title="reach", columns=("what", "goal", "found", "reached"), rows=tuple(lines))


def show(tables: Sequence[Sheet]) -> None:
    """Prints them."""
    console = Console(width=150)
    for sheet in tables:
        table = Table(*sheet.columns, title=sheet.title)
        for row in sheet.rows:
            table.add_row(*row)
        console.print(table)


def markdown(tables: Sequence[Sheet], facts: Mapping[str, Any]) -> str:
    """The same, with what the figures depend on above them."""
    machine, run = facts["machine"], facts["run"]
    versions = {**machine["packages"], **facts["peers"]}
    lines = [
        f"Machine: {machine['cpus']} cores ({machine['machine']}), {machine['system']}, Python {machine['python']}.",
        f"Load average at the end: {', '.join(map(str, machine['load_average']))}.",
        f"Medians of {run['rounds']} interleaved round(s), size `{run['size']}`.",
        "",
        "Servers: " + ", ".join(f"{name} {text}" for name, text in facts["servers"].items()) + ".",
        "",
        "Versions: " + ", ".join(f"{name} {text}" for name, text in versions.items()) + ".",
    ]
    for sheet in tables:
        rule = "|".join(["---", *["---:"] * (len(sheet.columns) - 1)])
        lines += ["", f"| {' | '.join(sheet.columns)} |", f"|{rule}|"]
        lines += [f"| {' | '.join(row)} |" for row in sheet.rows]
    return "\n".join(lines)


def rewrite(page: Path, text: str) -> None:
    """Puts `text` between the markers of the page, which must be there once each."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} needs the lines {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")
