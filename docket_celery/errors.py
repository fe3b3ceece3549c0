"""Every error this package raises, in one tree.

    DocketError
    ├── ConfigError               an option is unknown, mistyped or out of bounds
    ├── GraphError
    │   ├── GraphFormatError      a document cannot be read as a graph
    │   ├── InvalidGraph          verification found errors; carries the diagnostics
    │   ├── GuardError            a guard cannot be parsed, or not be evaluated on these values
    │   └── PictureUnavailable    a graph cannot be drawn here
    ├── InvalidInput              a value given by a caller does not fit (run input, answer, time, key, tenant)
    ├── ValueRefused              a state value cannot be kept exactly; names field and path
    ├── UnknownNode               a node name that this process does not know
    ├── StoreError
    │   ├── NotFound              no such thing in this scope
    │   ├── StaleFence            the claim token or the sequence has moved on
    │   ├── InvalidCommit         a commit proposal contradicts itself
    │   ├── InvalidMutation       a mutation's proposal contradicts itself
    │   ├── ClaimLost             the claim to refresh is not ours any more
    │   ├── InactiveRun           the run has ended
    │   ├── EventConflict         another event already holds that sequence
    │   ├── KeyConflict           the start key belongs to a different start
    │   ├── CorruptRecord         a stored row cannot be decoded by this version
    │   ├── RowRefused            the database cannot hold a value it was given; trying again changes nothing
    │   ├── StoreUnavailable      the database cannot be reached, or refuses us
    │   └── SchemaMismatch        the database's schema is missing, too old or too new
    ├── PermanentFailure          raised by a node: this attempt failed and another would fail too
    ├── ClaimInvariant            a claimed run is not what a claim promises; recovered by expiry
    ├── RunPoisoned               awaited run was halted by its claim limits; carries its RunInfo
    └── AwaitTimeout              awaited run is still going

The docstring says when; the message names the thing, the bound and the value (`shown`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from docket_celery.graph.diagnostics import Diagnostic

LONGEST_SHOWN: Final = 100
"""Characters of a refused value that a message quotes."""
LONGEST_MESSAGE: Final = 3_900
"""Characters of an error's whole message. A run's failure keeps some more, so that it is cut once."""


def cut(text: str, longest: int) -> str:
    """`text`, or its beginning and how long it was."""
    return text if len(text) <= longest else f"{text[:longest]}... ({len(text)} characters)"


def shown(value: object) -> str:
    """A refused value as a message quotes it: cut to a bounded length, and whatever comes of its `repr`."""
    try:
        text = repr(value)
    except BaseException as error:  # Of an integer of thousands of digits, too; and code of others may even exit.
        return f"a {type(value).__name__} that cannot be shown ({type(error).__name__})"
    return cut(text, LONGEST_SHOWN)


def part_of(error: BaseException, name: str, kind: type[BaseException] = BaseException) -> Any:
    """An attribute that errors of `kind` have, such as `__cause__`, from where the interpreter keeps it: a derived
    class may have put code in its place.
    """
    return kind.__dict__[name].__get__(error)


def is_of(error: BaseException, *kinds: type[BaseException]) -> bool:
    """Whether somebody else's error is of one of these kinds, by its real class alone. `isinstance` would ask the error
    itself as well, which may answer with code of its own.
    """
    return issubclass(type(error), kinds)


class DocketError(Exception):
    """Root of everything raised on purpose by this package. Its text is bounded, whatever name or key it quotes."""

    def __str__(self) -> str:
        return cut(super().__str__(), LONGEST_MESSAGE)


class ConfigError(DocketError, ValueError):
    """A `docket_` option is unknown, of the wrong type, or out of bounds."""


class GraphError(DocketError):
    """Something about an authored graph."""


class GraphFormatError(GraphError, ValueError):
    """A graph edit or a stored document is malformed; the message gives the path."""


class InvalidGraph(GraphError):
    """A graph does not verify. `diagnostics` holds every problem found, not only the first."""

    def __init__(self, graph_id: str, diagnostics: Sequence[Diagnostic]) -> None:
        self.graph_id = graph_id
        self.diagnostics = tuple(diagnostics)
        lines = "\n".join(f"  {diagnostic}" for diagnostic in self.diagnostics)
        super().__init__(f"graph {graph_id!r} is not valid:\n{lines}")


class GuardError(GraphError, ValueError):
    """A CEL guard does not parse, or its evaluation fails or yields no boolean; the message quotes the guard."""


class PictureUnavailable(GraphError):
    """A graph cannot be drawn on this machine; the message says what is missing."""


class InvalidInput(DocketError, ValueError):
    """A caller's value does not fit what it is for: a run's input, an answer, an instant, a key, an id."""


class ValueRefused(DocketError, ValueError):
    """A value cannot be kept exactly as JSON. Permanent: never retried.

    `path` is a JSONPath-like location such as `$.log[2].k`; `code` is `value_refused` or `payload_too_large`.
    """

    def __init__(self, path: str, reason: str, *, code: str = "value_refused") -> None:
        self.path = path
        self.reason = reason
        self.code = code
        super().__init__(f"{path}: {reason}")


class UnknownNode(DocketError, LookupError):
    """A node name that nothing registered in this process answers to."""


class StoreError(DocketError):
    """A storage operation was refused or could not be carried out."""


class NotFound(StoreError, LookupError):
    """No such run, graph version or interrupt in this scope; a wrong scope looks the same."""


class StaleFence(StoreError):
    """The stored claim token or checkpoint sequence differs; nothing was changed."""


class InvalidCommit(StoreError):
    """A commit proposal is malformed; found before any lookup."""


class InvalidMutation(StoreError):
    """A mutation's proposal is malformed; nothing was changed."""


class ClaimLost(StoreError):
    """The claim is not (any more) held under this token."""


class InactiveRun(StoreError):
    """The run has already ended."""


class EventConflict(StoreError):
    """A different event is already stored under this run and sequence; the whole transition was rolled back."""


class KeyConflict(StoreError):
    """The start key is held by a run of another graph version or another input. `run_id` names it."""

    def __init__(self, key: str, run_id: str) -> None:
        self.key = key
        self.run_id = run_id
        super().__init__(f"start key {key!r} belongs to run {run_id!r}, which has another graph version or input")


class CorruptRecord(StoreError):
    """A stored record cannot be decoded by this version of the package."""


class RowRefused(StoreError):
    """The database cannot hold a value that it was given, now and at every repetition."""


class StoreUnavailable(StoreError):
    """The database cannot be reached or refuses this client."""


class SchemaMismatch(StoreError):
    """The database's schema is not the one this version needs; the message says which command mends it."""


class PermanentFailure(DocketError):
    """For nodes to raise: the run fails at once, whatever the node's retry policy says."""


class ClaimInvariant(DocketError):
    """A claimed run contradicts its claim (not runnable, graph missing, commit rejected).

    Never swallowed: the vehicle stops loudly and the claim's expiry recovers the run.
    """

    def __init__(self, message: str, **details: Any) -> None:
        self.details = details
        super().__init__(message)


class RunPoisoned(DocketError):
    """The awaited run was halted by its claim limits. `info` is its `RunInfo`; an operator may retry it."""

    def __init__(self, info: Any) -> None:
        self.info = info
        super().__init__(f"run {info.run_id!r} is poisoned: {info.poison_reason}")


class AwaitTimeout(DocketError, TimeoutError):
    """The awaited run did not stop within the given time."""
