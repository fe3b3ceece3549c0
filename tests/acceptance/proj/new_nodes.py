"""What the next release of the app brings along; an older worker does not have it."""

from __future__ import annotations

from typing import Any

from docket_celery import NodeContext
from proj.nodes import record


def new_step(ctx: NodeContext) -> dict[str, Any]:
    record(ctx)
    return {"log": ctx.node}
