"""The wire form of a lease: the one thing the broker carries. Plain JSON, small and fixed in size."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from docket_celery.errors import InvalidInput
from docket_celery.storage.contracts.values import Lease


def to_message(lease: Lease) -> dict[str, Any]:
    """The lease as JSON-safe keyword values."""
    return {
        "run_id": lease.run_id,
        "tenant": lease.tenant,
        "graph_id": lease.graph_id,
        "graph_hash": lease.graph_hash,
        "checkpoint_seq": lease.checkpoint_seq,
        "claim_token": lease.claim_token,
        "claimed_at": lease.claimed_at.isoformat(),
        "claim_attempt": lease.claim_attempt,
        "orphan_ttl": lease.orphan_ttl.total_seconds(),
    }


def from_message(message: Mapping[str, Any]) -> Lease:
    """Reads what `to_message` wrote; keys of later versions are ignored, anything malformed is `InvalidInput`."""
    try:
        return Lease(
            run_id=str(message["run_id"]),
            tenant=None if message["tenant"] is None else str(message["tenant"]),
            graph_id=str(message["graph_id"]),
            graph_hash=str(message["graph_hash"]),
            checkpoint_seq=int(message["checkpoint_seq"]),
            claim_token=str(message["claim_token"]),
            claimed_at=datetime.fromisoformat(message["claimed_at"]),
            claim_attempt=int(message["claim_attempt"]),
            orphan_ttl=timedelta(seconds=message["orphan_ttl"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput(f"not a lease: {type(error).__name__}: {error}") from error
