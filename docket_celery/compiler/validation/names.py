"""Help for a mistyped name."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import Final

_TOO_MANY: Final = 1_000
"""Comparing with more candidates than this costs more than the hint is worth."""


def did_you_mean(name: str, known: Collection[str]) -> str:
    """A hint that ends a sentence, such as `; did you mean 'total'?`, or nothing."""
    close = difflib.get_close_matches(name, known, n=1) if len(known) <= _TOO_MANY else []
    return f"; did you mean {close[0]!r}?" if close else ""
