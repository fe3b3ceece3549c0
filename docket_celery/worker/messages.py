"""The wire form of a lease: the one thing the broker carries. Plain JSON, small and fixed in size, and signed where the
app's own messages are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from docket_celery.errors import InvalidInput
from docket_celery.storage.contracts.claims import Lease
from docket_celery.storage.contracts.values import check_name

CONTENT: Final = {"json": ("json", "application/json"), "auth": ("auth", "application/data")}
"""How a setting such as Celery's `accept_content` may name what the messages are written in, by serializer."""


def written_in(task_serializer: str) -> str:
    """The serializer of our messages in an app whose own tasks have this one: JSON, whichever that is, unless it is the
    `auth` with which Celery signs messages. The workers of such an app take no others.
    """
    return "auth" if task_serializer == "auth" else "json"


def is_accepted(accept_content: Iterable[str] | None, serializer: str) -> bool:
    """Whether a worker that takes this content and no other (None: any) takes messages written so, or drops them."""
    return accept_content is None or not set(CONTENT[serializer]).isdisjoint(accept_content)


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
        tenant, claimed_at = message["tenant"], datetime.fromisoformat(message["claimed_at"])
        if claimed_at.tzinfo is None:
            raise ValueError("claimed_at has no offset")
        return Lease(
            run_id=check_name(message["run_id"], "run_id"),
            tenant=None if tenant is None else check_name(tenant, "tenant"),
            graph_id=check_name(message["graph_id"], "graph_id"),
            graph_hash=check_name(message["graph_hash"], "graph_hash"),
            checkpoint_seq=_count(message, "checkpoint_seq"),
            claim_token=check_name(message["claim_token"], "claim_token"),
            claimed_at=claimed_at,
            claim_attempt=_count(message, "claim_attempt"),
            orphan_ttl=timedelta(seconds=message["orphan_ttl"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(f"not a lease: {type(error).__name__}: {error!s:.200}") from error


def _count(message: Mapping[str, Any], key: str) -> int:
    """A number that PostgreSQL can compare with its own."""
    value = message[key]
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{key} is {value!r}")
    return value
