"""The advisory locks of one schema. They last for a transaction, never for a session, which a pooler lends: only the
listener's turn does, on a session of its own that no pooler stands before.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Literal


def advisory_key(purpose: Literal["migrate", "prune", "listen"], schema: str) -> int:
    """63 bits that no other program, and no other schema of this one, is likely to use."""
    return int.from_bytes(blake2b(f"docket-celery {purpose} {schema}".encode(), digest_size=8).digest(), "big") >> 1
