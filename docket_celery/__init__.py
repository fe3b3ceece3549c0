"""Durable, graph-shaped workflows for teams that already run Celery.

The public names are loaded when they are first used: Celery imports this package on every `celery` command.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from docket_celery.errors import DocketError, PermanentFailure
    from docket_celery.graph.document import Graph
    from docket_celery.graph.elements import FINISH, START, Retry
    from docket_celery.graph.functions import node
    from docket_celery.run.document import Run, RunStatus
    from docket_celery.run.events import Event, EventType
    from docket_celery.run.views import EventPage, RunInfo, RunPage, RunSummary
    from docket_celery.runtime.node import Interrupt, NodeContext, Sleep
    from docket_celery.storage.contracts.values import GraphRef
    from docket_celery.worker.setup import Docket
    from docket_celery.worker.signals import (
        lease_refused,
        moment_committed,
        node_failed,
        run_finished,
        run_poisoned,
        run_started,
        run_waiting,
    )

__version__ = "0.1.0"

_HOMES = {
    "Docket": "worker.setup",
    "DocketError": "errors",
    "Event": "run.events",
    "EventPage": "run.views",
    "EventType": "run.events",
    "FINISH": "graph.elements",
    "Graph": "graph.document",
    "GraphRef": "storage.contracts.values",
    "Interrupt": "runtime.node",
    "NodeContext": "runtime.node",
    "PermanentFailure": "errors",
    "Retry": "graph.elements",
    "Run": "run.document",
    "RunInfo": "run.views",
    "RunPage": "run.views",
    "RunStatus": "run.document",
    "RunSummary": "run.views",
    "START": "graph.elements",
    "Sleep": "runtime.node",
    "lease_refused": "worker.signals",
    "moment_committed": "worker.signals",
    "node": "graph.functions",
    "node_failed": "worker.signals",
    "run_finished": "worker.signals",
    "run_poisoned": "worker.signals",
    "run_started": "worker.signals",
    "run_waiting": "worker.signals",
}

__all__ = [
    "FINISH",
    "START",
    "Docket",
    "DocketError",
    "Event",
    "EventPage",
    "EventType",
    "Graph",
    "GraphRef",
    "Interrupt",
    "NodeContext",
    "PermanentFailure",
    "Retry",
    "Run",
    "RunInfo",
    "RunPage",
    "RunStatus",
    "RunSummary",
    "Sleep",
    "lease_refused",
    "moment_committed",
    "node",
    "node_failed",
    "run_finished",
    "run_poisoned",
    "run_started",
    "run_waiting",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value
