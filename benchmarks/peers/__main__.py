"""Runs the peers side by side with docket_celery.

    python -m benchmarks.peers --quick                       # one round of small sizes: that it runs, not how fast
    python -m benchmarks.peers --json FILE --chart FILE.svg  # three interleaved rounds, medians
    python -m benchmarks.peers --docs                        # the same, into docs/performance.md
    python -m benchmarks.peers --only docket langgraph --workload chain100 --rounds 5

Makes the peers' environment if there is none for these pins yet, starts one PostgreSQL (fsync on) and one Redis for
all, and runs every engine on every workload it has. A run that is lost, executed twice or wrong ends the command.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.machine import description
from benchmarks.peers import environment
from benchmarks.peers.contest import CONTESTANTS, ROOT, Samples, hold, medians, servers
from benchmarks.peers.reach import GOALS, Figures
from benchmarks.peers.report import markdown, rewrite, sheets, show
from benchmarks.peers.workloads import Size, Workload, workloads

PAGE = ROOT / "docs" / "performance.md"


def main() -> None:
    """Measures, prints the tables, and writes what is asked for."""
    options = _options()
    size: Size = "smallest" if options.smallest else "quick" if options.quick else "full"
    rounds = options.rounds or (1 if size != "full" else 3)
    works = [work for name, work in workloads(size).items() if name in options.workload]
    chart = options.chart or (PAGE.with_suffix(".svg") if options.docs else None)
    needed = chart is not None or any(not CONTESTANTS[name].own for name in options.only)
    python = environment.interpreter(options.home) if needed else None
    with servers() as running:
        settings = running.settings()
        samples = hold(running, works, options.only, rounds=rounds, size=size, peers=python)
    figures = _medians(works, samples)
    tables = sheets(works, figures)
    results = {
        "machine": description(),
        "peers": {} if python is None else environment.versions(python),
        "servers": settings,
        "run": {"rounds": rounds, "size": size},
        "figures": [_figure(work, figures[work.name], samples) for work in works if work.name in figures],
        "reach": [
            {"what": goal.what, "bound": goal.bound, "at_most": goal.at_most, "unit": goal.unit,
             "found": goal.found(figures), "reached": goal.reached(figures)}
            for goal in GOALS
        ],
    }  # fmt: skip
    show(tables)
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    if chart is not None:
        assert python is not None
        _draw(results, python, chart)
    if options.docs:
        rewrite(PAGE, markdown(tables, results))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round of small sizes, in a minute or two")
    parser.add_argument("--smallest", action="store_true", help="one round of the smallest sizes: no figures")
    parser.add_argument("--rounds", type=int, default=None, help="3, or 1 of the small sizes")
    parser.add_argument("--only", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS), metavar="ENGINE")
    parser.add_argument(
        "--workload", nargs="+", choices=workloads("full"), default=list(workloads("full")), metavar="W"
    )
    parser.add_argument("--home", type=Path, default=environment.default_home(), help="where environments are kept")
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--chart", type=Path, default=None, help="an SVG file")
    parser.add_argument("--docs", action="store_true", help="rewrites the tables and the chart of docs/performance.md")
    return parser.parse_args()


def _medians(works: list[Workload], samples: Samples) -> Figures:
    figures: dict[str, dict[str, Any]] = {}
    for (workload, name), taken in samples.items():
        figures.setdefault(workload, {})[name] = medians(taken)
    return figures


def _figure(work: Workload, rows: Any, samples: Samples) -> dict[str, Any]:
    engines = {
        name: {
            "title": CONTESTANTS[name].title,
            "kind": CONTESTANTS[name].kind,
            **row,
            "samples": samples[work.name, name],
        }
        for name, row in rows.items()
    }
    return {"workload": work.name, "title": work.title, "unit": work.unit, "runs": work.runs, "engines": engines}


def _draw(results: dict[str, Any], python: Path, file: Path) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as handed:
        json.dump(results, handed)
        handed.flush()
        subprocess.run([python, "-m", "benchmarks.peers.chart", handed.name, file.resolve()], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
