"""The parts of a graph: fields, nodes, edges, retry policies.

Values only. What a combination of them means is the compiler's business; whether it is allowed, the validation's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from docket_celery.errors import GraphFormatError, shown

START: Final = "$start"
"""Source of the edges that a run begins with."""
FINISH: Final = "$finish"
"""Target at which a branch ends. A run is done when nothing is active any more."""

UNSET: Final[Any] = type("Unset", (), {"__repr__": lambda self: "UNSET", "__bool__": lambda self: False})()
"""Marks a field without a default (None is a value)."""

MOST_COUNTED: Final = 2**63 - 1
"""The highest bound on attempts or supersteps: what every reader of the document can hold."""
LONGEST_DELAY: Final = 100 * 365 * 86_400.0
"""Seconds; every delay saturates here, so that no instant leaves what PostgreSQL and Python can hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """When a node's failed attempt is tried again.

    max_attempts  attempts in all, the first included; from 1 to 2^63 - 1
    backoff       seconds before the second attempt
    factor        what each further delay is multiplied with
    backoff_max   seconds no delay exceeds
    jitter        share of the delay that is drawn at random: 0.2 waits between 80 % and 100 % of it
    """

    max_attempts: int = 3
    backoff: float = 1.0
    factor: float = 2.0
    backoff_max: float = 3_600.0
    jitter: float = 0.2

    def __post_init__(self) -> None:
        attempts = self.max_attempts
        if isinstance(attempts, bool) or not isinstance(attempts, int) or not 1 <= attempts <= MOST_COUNTED:
            raise GraphFormatError(
                f"retry.max_attempts must be a whole number from 1 to 2^63 - 1, got {shown(attempts)}"
            )
        for name, low, high in (
            ("backoff", 0.0, LONGEST_DELAY),
            ("factor", 0.0, 1_000.0),
            ("backoff_max", 0.0, LONGEST_DELAY),
            ("jitter", 0.0, 1.0),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                raise GraphFormatError(f"retry.{name} must be a number from {low:g} to {high:g}, got {shown(value)}")

    def delay(self, failed_attempts: int, fraction: float) -> float:
        """Seconds to wait after the `failed_attempts`-th failure (from 1). Saturates; never raises.

        `fraction` in [0, 1) is the random draw; the result lies in ((1 - jitter) * nominal, nominal].
        """
        try:
            nominal = self.backoff * self.factor ** (failed_attempts - 1)
        except OverflowError:
            nominal = self.backoff_max if self.backoff else 0.0
        nominal = min(nominal, self.backoff_max)
        return nominal * (1.0 - self.jitter * fraction)


NO_RETRY: Final = Retry(max_attempts=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A named part of the state. `schema` is the JSON Schema of its committed value."""

    name: str
    schema: Mapping[str, Any] = field(default_factory=dict)
    reducer: str = "last_value"
    default: Any = UNSET
    is_input: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldInput:
    """A parameter bound to a field, or to a part of it (`path`: keys and list indexes, outermost first).

    An optional one is left out of the call when the field does not exist or has no value.
    """

    field: str
    path: tuple[str | int, ...] = ()
    optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantInput:
    """A parameter bound to a JSON value in the document."""

    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A named step.

    `call` is the name under which the callable is registered wherever the node runs. `inputs` None binds the
    callable's own parameters when it is known. `writes` None takes a mapping of field names from the callable; a field
    name takes whatever it returns as that field's write. `function` is the callable an author passed, kept for tests
    in the same process; it is no part of the document.
    """

    id: str
    call: str
    inputs: Mapping[str, FieldInput | ConstantInput] | None = None
    writes: str | None = None
    retry: Retry = NO_RETRY
    timeout: float | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    queue: str | None = None
    detached: bool = False
    function: Callable[..., Any] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """From one source, or as a fan-in barrier from several, to a target; taken when `when` (CEL) holds.

    A single source fires its edge each time it completes. A barrier waits until every source has completed since it
    fired last, then is judged once.
    """

    sources: tuple[str, ...]
    target: str
    when: str | None = None
    is_barrier: bool = False

    @property
    def id(self) -> str:
        """Canonical name: `a -> b`, or `[a, b] -> c` with the sources sorted; a guard follows in braces."""
        source = "[" + ", ".join(sorted(self.sources)) + "]" if self.is_barrier else self.sources[0]
        guard = "" if self.when is None else f" {{{self.when}}}"
        return f"{source} -> {self.target}{guard}"
