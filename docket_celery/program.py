"""A compiled graph version: what the runtime reads. Immutable; the compiler writes it.

Two grades. A *plan* (nodes without callables) is enough to start, resolve and cancel, so those need none of the node
code. A *program* (every node with its callable) is what a vehicle executes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct, field

from docket_celery.graph.elements import NO_RETRY, ConstantInput, FieldInput, Retry
from docket_celery.graph.guards import Guard
from docket_celery.graph.reducers import Reducer
from docket_celery.graph.schemas import Schema
from docket_celery.run.document import JsonValue


class RuntimeField(Struct, frozen=True, kw_only=True):
    """A field with its reducer and its compiled schema. `initial` is its value at the start; `has_initial` if any."""

    name: str
    reducer: Reducer
    schema: Schema
    is_input: bool = False
    has_initial: bool = False
    initial: JsonValue = None


class RuntimeParameter(Struct, frozen=True, kw_only=True):
    """One argument of a node's call: where it comes from, and how its Python type is rebuilt from JSON. `is_of_others`
    tells that the field was declared with another version of that type than this process has.
    """

    name: str
    source: FieldInput | ConstantInput
    revive: Callable[[JsonValue], Any] | None = None
    is_of_others: bool = False


class RuntimeNode(Struct, frozen=True, kw_only=True):
    """A node ready to run; `call` is None in a plan."""

    id: str
    call: Callable[..., Any] | None = None
    parameters: tuple[RuntimeParameter, ...] = ()
    wants_context: bool = False
    is_async: bool = False
    writes: str | None = None
    retry: Retry = NO_RETRY
    timeout: float | None = None
    config: Mapping[str, JsonValue] = field(default_factory=dict)


class RuntimeEdge(Struct, frozen=True, kw_only=True):
    """An edge with its compiled guard. `sources` is sorted; several sources make a barrier."""

    id: str
    sources: tuple[str, ...]
    target: str
    guard: Guard | None = None
    is_barrier: bool = False


class RuntimeGraph(Struct, frozen=True, kw_only=True):
    """One graph version, compiled. Mappings iterate in sorted order, so that everything derived is deterministic."""

    graph_id: str
    graph_hash: str
    fields: Mapping[str, RuntimeField]
    nodes: Mapping[str, RuntimeNode]
    outgoing: Mapping[str, tuple[RuntimeEdge, ...]]
    """By source, `$start` included: the edges that a completed source fires or arrives at, sorted by edge id."""
    outputs: tuple[str, ...]
    max_supersteps: int | None = None
