"""What the system says about a process, by Linux's `/proc`. Elsewhere it says nothing, and nothing is inferred."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Final

from docket_celery.renewal import Holder

_AT_WORK: Final = frozenset("RSD")
"""States in which a process runs or waits for something. A stopped, traced, dead or unheard-of one is not at work."""
_STATE, _BORN = 0, 19
"""Where they stand in `/proc/<pid>/stat`, behind the name, which may hold anything."""


def this_process() -> Holder | None:
    """The calling process; None where the system does not say when it was born."""
    return _of(os.getpid())


def is_at_work(process: Holder) -> bool:
    """Whether this very process is alive and neither stopped nor frozen: another one of its number does not count."""
    facts = _facts(process.pid)
    return bool(facts) and int(facts[_BORN]) == process.born and facts[_STATE] in _AT_WORK


@lru_cache(maxsize=1)
def _of(pid: int) -> Holder | None:
    facts = _facts(pid)
    return Holder(pid, int(facts[_BORN])) if facts else None


def _facts(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
