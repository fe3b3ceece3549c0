"""What a node sees and what it may return."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from docket_celery.clock import utc_instant
from docket_celery.errors import InvalidInput, shown
from docket_celery.graph.elements import LONGEST_DELAY, UNSET
from docket_celery.run.document import JsonValue


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeContext:
    """Passed to a node that declares a parameter `ctx`.

    `idempotency_key` is equal in every execution of the same attempt and differs between attempts: give it to the
    outside world. `activation_key` is equal in every attempt of the same activation. `deadline` is monotonic-clock
    seconds of this process, None without a limit; `check()` raises `TimeoutError` once it has passed.
    """

    run_id: str
    graph_id: str
    graph_hash: str
    node: str
    step: int
    attempt: int
    task_id: str
    idempotency_key: str
    activation_key: str
    config: Mapping[str, JsonValue] = field(default_factory=dict)
    deadline: float | None = None
    monotonic: Callable[[], float] = field(default=lambda: 0.0, repr=False)

    def check(self) -> None:
        """Raises `TimeoutError` when this attempt's deadline has passed; long loops call it between pieces."""
        if self.deadline is not None and self.monotonic() >= self.deadline:
            raise TimeoutError(f"node {self.node!r}: attempt {self.attempt} is past its deadline")


class Interrupt:
    """Returned by a node that cannot go on without an answer from outside.

    field     the field that takes the answer; while this activation lasts it is the node's own input of that name
    schema    Python type or JSON Schema of the answer; default: the field's own schema decides
    payload   JSON value for whoever is to answer
    timeout   seconds from now (on the database clock) after which the default answers, or
    until     the aware instant at which it does
    default   the answer that the run gives itself then; a deadline needs one, and it must fit like any other

    The node is called again with the answer. Both the answer and what that call returns are written when the
    superstep closes.
    """

    __slots__ = ("default", "field", "payload", "schema", "timeout", "until")

    def __init__(
        self,
        field: str,
        *,
        schema: Any = None,
        payload: JsonValue = None,
        timeout: float | None = None,
        until: datetime | None = None,
        default: Any = UNSET,
    ) -> None:
        if not isinstance(field, str) or not field:
            raise InvalidInput(f"Interrupt needs the name of a field, got {shown(field)}")
        if timeout is not None and until is not None:
            raise InvalidInput(f"Interrupt {field!r} takes either timeout or until")
        if (timeout is None and until is None) is not (default is UNSET):
            raise InvalidInput(f"Interrupt {field!r} takes a default answer with a deadline, and only with one")
        _check_delay(timeout, f"Interrupt {field!r} timeout")
        until = None if until is None else utc_instant(until, f"Interrupt {field!r} until")
        self.field = field
        self.schema = schema
        self.payload = payload
        self.timeout = timeout
        self.until = until
        self.default = default

    def __repr__(self) -> str:
        return f"Interrupt({self.field!r})"


class Sleep:
    """Returned by a node that is done, but not yet: its writes count once the time has come. A durable timer.

    Give either `seconds` from now (on the database clock) or an aware instant `until`. The node is not called again;
    to look again later, make a cycle.
    """

    __slots__ = ("seconds", "until", "writes")

    def __init__(
        self,
        seconds: float | None = None,
        *,
        until: datetime | None = None,
        writes: Mapping[str, Any] | None = None,
    ) -> None:
        if (seconds is None) == (until is None):
            raise InvalidInput("Sleep takes either seconds or until")
        _check_delay(seconds, "Sleep seconds")
        until = None if until is None else utc_instant(until, "Sleep until")
        self.seconds = seconds
        self.until = until
        self.writes = writes

    def __repr__(self) -> str:
        return f"Sleep({self.seconds if self.until is None else self.until!r})"


def _check_delay(seconds: object, what: str) -> None:
    if seconds is not None and (
        isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= LONGEST_DELAY
    ):
        raise InvalidInput(f"{what} must be a number from 0 to {LONGEST_DELAY:g}, got {shown(seconds)}")
