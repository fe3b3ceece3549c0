"""What a check is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from docket_celery.config import Config
from docket_celery.storage.contracts.fleet import Backlog, Listening
from docket_celery.storage.contracts.upkeep import Upkeep

Verdict: TypeAlias = Literal["fine", "warning", "problem"]
"""A warning costs speed or may be meant; a problem needs somebody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What was seen.

    database, schema, broker  None when all is well, otherwise what went wrong
    backlog, upkeep           None when it could not be read
    listener                  None where docket_listen is off, or when it could not be asked
    prefetch_multiplier       the app's; `prefetch_disabled` when workers reserve nothing at all
    early_acknowledging       names of the app's own tasks that are acknowledged before they run
    strays                    options of docket's tasks that are not what docket set: "task option: value, not wanted"
    routed                    names of docket's tasks that a route of the host matches
    refused_content           the app's `accept_content` where docket's messages are not among it, else None
    transport                 the kind of broker, such as "redis" or "amqp"; None when that cannot be told
    longest_hold              seconds for which a worker may hold a lease's message unacknowledged
    ack_connections           connections that acknowledgements in Redis share, None where there are none such
    is_green                  whether the app's configuration makes pools of greenlets
    """

    config: Config
    database: str | None
    schema: str | None
    broker: str | None
    backlog: Backlog | None
    upkeep: Upkeep | None
    listener: Listening | None
    prefetch_multiplier: int
    prefetch_disabled: bool
    early_acknowledging: Sequence[str]
    strays: Sequence[str]
    routed: Sequence[str]
    refused_content: Sequence[str] | None
    transport: str | None
    longest_hold: float
    ack_connections: int | None
    is_green: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One check's outcome. `advice` is empty when there is nothing to do."""

    check: str
    verdict: Verdict
    seen: str
    advice: str = ""


Check: TypeAlias = Callable[[Facts], Finding | None]
"""One question: None where it does not arise, or where what it needs could not be gathered."""
