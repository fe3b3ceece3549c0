"""What the tests of pooling are given."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooled:
    """A database twice: through the pooler, and past it. `log` is the server's, each line with its SQLSTATE."""

    url: str
    direct_url: str
    log: Path
