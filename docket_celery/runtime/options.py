"""What the host allows, as the runtime sees it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeOptions:
    """Host limits for one process.

    max_value_bytes      bytes of one value's compact JSON form
    max_attempt_elapsed  seconds an attempt may take when its node names no limit of its own; None: no limit
    max_supersteps       bound for graphs that set none; None: only acyclic graphs come without one
    """

    max_value_bytes: int = 16 * 1024 * 1024
    max_attempt_elapsed: float | None = None
    max_supersteps: int | None = None
