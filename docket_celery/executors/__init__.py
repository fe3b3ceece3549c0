"""Carries out the attempts of one superstep in a worker process, each under a deadline that ends it or fences it off.

A limit is real in both cases: whatever an overdue attempt still does or returns, its result is void and the run goes
on. Knows neither Celery nor gevent; which of its means are safe is said by whoever builds it.
"""

from __future__ import annotations

from docket_celery.executors.fenced import FencedExecutor
from docket_celery.executors.interruption import Interrupter
from docket_celery.executors.nodes import NodeExecutor
from docket_celery.executors.overdue import Overdue

__all__ = ["FencedExecutor", "Interrupter", "NodeExecutor", "Overdue"]
