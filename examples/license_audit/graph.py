"""The graph of one distribution's audit.

inspect -> classify, measure (in parallel) -> assess -> record
                                              assess -> verdict (a human) -> record
"""

from __future__ import annotations

from typing import Any, Final

from docket_celery import FINISH, START, Graph, Retry
from examples.license_audit import nodes

GRAPH_ID: Final = "license_audit"

graph = (
    Graph(GRAPH_ID)
    .input("distribution", str)
    .input("site", str)
    .input("rehearse_faults", bool)
    .field("facts", dict[str, Any])
    .field("classification", dict[str, Any])
    .field("standing", str)
    .field("measurement", dict[str, Any])
    .field("risk", dict[str, Any])
    .field("verdict", nodes.VERDICT)
    .field("entry", dict[str, Any])
    .field("log", list[str], reducer="append")
    .node("inspect", nodes.inspect)
    .node("classify", nodes.classify)
    .node("measure", nodes.measure, timeout=60, retry=Retry(max_attempts=4, backoff=0.5, factor=2.0))
    .node("assess", nodes.assess)
    .node("verdict", nodes.verdict)
    .node("record", nodes.record)
    .edge(START, "inspect")
    .edge("inspect", "classify")
    .edge("inspect", "measure")
    .edge(["classify", "measure"], "assess")
    .edge("assess", "record", when='standing == "known"')
    .edge("assess", "verdict", when='standing != "known"')
    .edge("verdict", "record")
    .edge("record", FINISH)
    .output("entry")
    .output("log")
)
