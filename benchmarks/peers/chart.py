"""Speeds as bars, one panel per workload: run by the peers' Python, which has matplotlib.

python -m benchmarks.peers.chart RESULTS.json CHART.svg
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib  # type: ignore[import-not-found,unused-ignore]

COLOURS = {"floor": "#999999", "ours": "#0072b2", "durable": "#e69f00", "queue": "#56b4e9", "volatile": "#cc79a7"}
"""Told apart by every eye (Okabe and Ito); each bar carries its name as well."""


def draw(results: dict[str, Any], file: Path) -> None:
    """One SVG, the same bytes for the same figures."""
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "docket", "svg.fonttype": "none", "font.size": 8})
    from matplotlib import pyplot

    panels = [figure for figure in results["figures"] if "per_second" in next(iter(figure["engines"].values()))]
    heights = [len(panel["engines"]) + 1.6 for panel in panels]
    figure, axes = pyplot.subplots(
        len(panels), figsize=(7, sum(heights) * 0.2), height_ratios=heights, layout="constrained", squeeze=False
    )
    for axis, panel in zip(axes[:, 0], panels, strict=True):
        names = list(panel["engines"])[::-1]
        speeds = [panel["engines"][name]["per_second"] for name in names]
        colours = [COLOURS[panel["engines"][name]["kind"]] for name in names]
        bars = axis.barh([panel["engines"][name]["title"] for name in names], speeds, color=colours)
        axis.bar_label(bars, [f"{speed:,.0f}" for speed in speeds], padding=3)
        axis.set_title(f"{panel['title']}, {panel['unit']}/s", loc="left", fontweight="bold")
        axis.margins(x=0.12)
        axis.xaxis.set_visible(False)
        axis.spines[["top", "right", "bottom"]].set_visible(False)
    figure.savefig(file, metadata={"Date": None})


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2]))
