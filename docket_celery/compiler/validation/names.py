"""Help for a mistyped name."""

from __future__ import annotations

import difflib
from bisect import bisect
from collections.abc import Collection
from typing import Final

_NEIGHBOURS: Final = 32
"""Names before and after the mistyped one, in order, that it is compared with: a comparison is slow, and a large graph
may have as many mistyped names as known ones."""


def did_you_mean(name: str, known: Collection[str]) -> str:
    """A hint that ends a sentence, such as `; did you mean 'total'?`, or nothing."""
    ordered = sorted(known)
    place = bisect(ordered, name)
    close = difflib.get_close_matches(name, ordered[max(place - _NEIGHBOURS, 0) : place + _NEIGHBOURS], n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
