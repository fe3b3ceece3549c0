"""What a reader may ask of a page, judged the same way by every store, before any lookup."""

from __future__ import annotations

from typing import Final

from docket_celery.errors import InvalidInput, shown

MOST_ROWS: Final = 1_000
"""Rows of one page."""
_HIGHEST: Final = 2**63 - 1


def check_limit(limit: object) -> int:
    """`limit` if a page may have so many rows; else `InvalidInput`."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MOST_ROWS:
        raise InvalidInput(f"limit must be a whole number from 1 to {MOST_ROWS}, got {shown(limit)}")
    return limit


def check_after(after_seq: object) -> int:
    """`after_seq` if it can be a position among events; else `InvalidInput`."""
    if isinstance(after_seq, bool) or not isinstance(after_seq, int) or not 0 <= after_seq <= _HIGHEST:
        raise InvalidInput(f"after_seq must be a whole number from 0 to {_HIGHEST}, got {shown(after_seq)}")
    return after_seq
