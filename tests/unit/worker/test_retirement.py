"""When a pool's child may leave: while it waits for a task, and at no other time."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
from billiard import pool

from docket_celery.worker.retirement import _is_idle


def looked_at_in_a_loop(workloop: Callable[[Any], Any]) -> dict[str, bool]:
    """What the loop of a child says of itself, in one task and while it waits for the next."""
    seen: dict[str, bool] = {}

    def look(when: str) -> None:
        seen[when] = _is_idle(sys._getframe())

    def receive() -> Any:
        if not seen:
            return pool.TASK, (1, None, look, ("in a task",), {})
        seen["waiting"] = _is_idle(sys._getframe())
        raise SystemExit

    child = Mock(maxtasks=None, max_memory_per_child=None, wait_for_job=receive, wait_for_syn=None)
    with pytest.raises(SystemExit):
        workloop(child)
    return seen


def test_a_child_is_idle_while_it_waits_for_a_task() -> None:
    assert looked_at_in_a_loop(pool.Worker.workloop) == {"in a task": False, "waiting": True}


def test_a_child_whose_loop_is_wrapped_as_sentry_does_it_is_idle_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = pool.Worker.workloop

    @functools.wraps(original)
    def wrapped(*args: Any, **options: Any) -> Any:
        return original(*args, **options)

    monkeypatch.setattr(pool.Worker, "workloop", wrapped)
    assert looked_at_in_a_loop(pool.Worker.workloop) == {"in a task": False, "waiting": True}
