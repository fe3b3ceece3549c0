"""Attempts around plain functions, for tests of the executors."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from docket_celery.program import RuntimeNode
from docket_celery.runtime.executor import Attempt
from docket_celery.runtime.node import NodeContext

LIMIT = 0.2
"""Seconds that an attempt has, where the test is about what happens then."""
SOON = LIMIT + 1.5
"""Seconds within which it must be over: far more than it takes, far less than what the nodes would wait for."""
AMPLE = 60.0
"""Seconds for what is to come about in time: on no machine does it take as long."""


def attempt(function: Callable[..., Any], timeout: float | None = LIMIT, **arguments: Any) -> Attempt:
    """One attempt to call `function`."""
    name = getattr(function, "__name__", "node")
    node = RuntimeNode(id=name, call=function, is_async=inspect.iscoroutinefunction(function))
    context = partial(
        NodeContext,
        run_id="run",
        graph_id="graph",
        graph_hash="hash",
        node=name,
        step=1,
        attempt=1,
        task_id="task",
        idempotency_key="key",
        activation_key="activation",
    )
    return Attempt(node=node, arguments=arguments, context=context, timeout=timeout)
