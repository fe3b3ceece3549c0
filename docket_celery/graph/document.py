"""The graph document: an immutable value, built by edits that each return a new one.

An edit refuses only what has no meaning by itself (a duplicate, a wrong type). Whether the whole makes sense is for the
compiler to say, all at once. Nothing here resolves or runs a node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from dataclasses import field as attribute
from types import MappingProxyType
from typing import Any, TypeVar

from docket_celery.errors import GraphFormatError, shown
from docket_celery.graph import serializer
from docket_celery.graph.elements import NO_RETRY, UNSET, ConstantInput, Edge, Field, FieldInput, Node, Retry
from docket_celery.graph.format import document_schema
from docket_celery.graph.functions import CONTEXT_PARAMETER, check_parameter, name_for, parameters_of
from docket_celery.graph.graphviz import dot, svg
from docket_celery.graph.picture import mermaid
from docket_celery.graph.plain import plain_copy
from docket_celery.graph.schemas import json_schema_of

Part = TypeVar("Part", Field, Node, Edge)


def _nothing() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes, state fields, edges and outputs under an id.

    `max_supersteps` bounds a run; a graph with a cycle needs it. `edges` is keyed by edge id. Two graphs are equal when
    they are the same document, whatever the order of their edits.
    """

    id: str
    _: KW_ONLY
    max_supersteps: int | None = None
    fields: Mapping[str, Field] = attribute(default_factory=_nothing)
    nodes: Mapping[str, Node] = attribute(default_factory=_nothing)
    edges: Mapping[str, Edge] = attribute(default_factory=_nothing)
    outputs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_text(self.id, "the graph's id")
        if self.max_supersteps is not None and type(self.max_supersteps) is not int:
            raise GraphFormatError(f"max_supersteps must be a whole number, got {shown(self.max_supersteps)}")
        for name in ("fields", "nodes", "edges"):
            parts = getattr(self, name)
            if not isinstance(parts, MappingProxyType):
                object.__setattr__(self, name, MappingProxyType(dict(parts)))

    def with_max_supersteps(self, max_supersteps: int | None) -> Graph:
        """Bounds the supersteps of a run; None takes the bound away."""
        return replace(self, max_supersteps=max_supersteps)

    def input(self, name: str, type_or_schema: Any, default: Any = UNSET) -> Graph:
        """A field that a run starts with. Without a default it must be given."""
        return self._with_field(name, type_or_schema, "last_value", default, is_input=True)

    def field(
        self, name: str, type_or_schema: Any = Any, *, reducer: str = "last_value", default: Any = UNSET
    ) -> Graph:
        """A field that nodes write. `type_or_schema` describes its committed value, `default` is plain JSON."""
        return self._with_field(name, type_or_schema, reducer, default, is_input=False)

    def node(
        self,
        id: str,
        function_or_name: Callable[..., Any] | str,
        *,
        inputs: Mapping[str, str | FieldInput | ConstantInput] | None = None,
        writes: str | None = None,
        retry: Retry | None = None,
        timeout: float | None = None,
        config: Mapping[str, Any] | None = None,
        queue: str | None = None,
        detached: bool = False,
    ) -> Graph:
        """A step that calls a function, a Celery task, or whatever is registered under a name.

        A callable's parameters are the fields of the same names, those with a default optionally; `inputs` rebinds
        single ones and leaves them optional or not. For a name, `inputs` is the whole binding; without it the
        callable's own parameters decide once it is known. `writes` names the field that takes whatever the call
        returns; without it the call returns a mapping of fields. `timeout` is seconds per attempt, `retry` what follows
        a failed one (by default the run fails), and `config` plain JSON that the node finds in `ctx.config`.

        `queue` and `detached` are for nodes that run outside the vehicle; this version's verification refuses them.
        """
        _check_text(id, "a node's id")
        path = f"nodes.{id}"
        if id in self.nodes:
            raise GraphFormatError(f"{path}: there is already a node of this id")
        _check_optional_text(writes, f"{path}.writes")
        _check_optional_text(queue, f"{path}.queue")
        if retry is not None and not isinstance(retry, Retry):
            raise GraphFormatError(f"{path}.retry: must be a Retry, got {shown(retry)}")
        added = Node(
            id=id,
            call=_call(id, function_or_name, f"{path}.call"),
            inputs=_bindings(path, function_or_name, inputs),
            writes=writes,
            retry=NO_RETRY if retry is None else retry,
            timeout=_seconds(timeout, f"{path}.timeout"),
            config=_config(config, f"{path}.config"),
            queue=queue,
            detached=bool(detached),
            function=None if isinstance(function_or_name, str) else function_or_name,
        )
        return replace(self, nodes=_extended(self.nodes, id, added))

    def edge(self, source: str | Iterable[str], target: str, *, when: str | None = None) -> Graph:
        """From `START` or a node to a node or `FINISH`, taken when the CEL expression `when` holds.

        A list of sources, even of one, is a fan-in barrier.
        """
        is_barrier = not isinstance(source, str)
        given = [source] if isinstance(source, str) else source
        sources = tuple(sorted(_check_text(one, "an edge's source") for one in given))
        _check_text(target, "an edge's target")
        _check_optional_text(when, f"edges to {target}: when")
        if not sources or len(set(sources)) < len(sources):
            raise GraphFormatError(f"edges to {target}: a barrier needs sources, each once, got {shown(list(sources))}")
        added = Edge(sources=sources, target=target, when=when, is_barrier=is_barrier)
        if added.id in self.edges:
            raise GraphFormatError(f"edges: {added.id!r} is already there")
        return replace(self, edges=_extended(self.edges, added.id, added))

    def output(self, *names: str) -> Graph:
        """Fields that are the run's result."""
        outputs = self.outputs + tuple(_check_text(name, "an output") for name in names)
        if repeated := sorted({name for name in outputs if outputs.count(name) > 1}):
            raise GraphFormatError(f"outputs: {repeated[0]!r} is already one")
        return replace(self, outputs=outputs)

    def to_dict(self) -> dict[str, Any]:
        """The document as plain JSON, in a copy of its own. Functions are left out; their names stay."""
        return serializer.to_dict(self)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Graph:
        """Reads what `to_dict` wrote. Strict: `GraphFormatError` names the path of what does not fit."""
        return cls(**serializer.read(document))

    def to_mermaid(self) -> str:
        """The graph as a Mermaid flowchart: guards on the edges, barriers as joins."""
        return mermaid(self)

    def to_dot(self) -> str:
        """The graph as Graphviz text, with the same contents."""
        return dot(self)

    def to_svg(self) -> str:
        """The graph as SVG, drawn by Graphviz; `PictureUnavailable` where its program `dot` is not installed."""
        return svg(dot(self))

    @staticmethod
    def json_schema() -> dict[str, Any]:
        """The published JSON Schema of the form that `to_dict` gives and `from_dict` reads."""
        return document_schema()

    def _with_field(self, name: str, type_or_schema: Any, reducer: str, default: Any, *, is_input: bool) -> Graph:
        _check_text(name, "a field's name")
        _check_text(reducer, f"fields.{name}.reducer")
        if name in self.fields:
            raise GraphFormatError(f"fields.{name}: there is already a field of this name")
        try:
            schema = json_schema_of(type_or_schema)
        except GraphFormatError as error:
            raise GraphFormatError(f"fields.{name}.schema: {error}") from error
        if default is not UNSET:
            default = plain_copy(default, f"fields.{name}.default")
        added = Field(name=name, schema=schema, reducer=reducer, default=default, is_input=is_input)
        return replace(self, fields=_extended(self.fields, name, added))


def _extended(parts: Mapping[str, Part], key: str, part: Part) -> Mapping[str, Part]:
    assert isinstance(parts, MappingProxyType)
    extended = parts.copy()
    extended[key] = part
    return MappingProxyType(extended)


def _bindings(
    path: str,
    function_or_name: Callable[..., Any] | str,
    inputs: Mapping[str, str | FieldInput | ConstantInput] | None,
) -> dict[str, FieldInput | ConstantInput] | None:
    if isinstance(function_or_name, str):
        return None if inputs is None else {name: _binding(path, name, source) for name, source in inputs.items()}
    optional = {
        parameter.name: parameter.default is not parameter.empty
        for parameter in parameters_of(function_or_name)
        if parameter.name != CONTEXT_PARAMETER and parameter.kind is not parameter.VAR_KEYWORD
    }
    sources = {name: name for name in optional} | dict(inputs or {})
    return {name: _binding(path, name, source, optional.get(name, False)) for name, source in sources.items()}


def _binding(node_path: str, parameter: object, source: object, optional: bool = False) -> FieldInput | ConstantInput:
    """A field's name alone is optional when the parameter has a default."""
    path = f"{node_path}.inputs.{parameter}"
    check_parameter(parameter, path)
    if isinstance(source, str) and source:
        return FieldInput(field=source, optional=optional)
    if isinstance(source, ConstantInput):
        return ConstantInput(value=plain_copy(source.value, path))
    if isinstance(source, FieldInput):
        _check_text(source.field, path)
        if all(type(part) in (str, int) for part in source.path):
            return replace(source, path=tuple(source.path), optional=bool(source.optional))
    raise GraphFormatError(f"{path}: must be a field's name, a FieldInput or a ConstantInput, got {shown(source)}")


def _call(id: str, function_or_name: Callable[..., Any] | str, path: str) -> str:
    if isinstance(function_or_name, str):
        return _check_text(function_or_name, path)
    try:
        return name_for(function_or_name, id)
    except GraphFormatError as error:
        raise GraphFormatError(f"{path}: {error}") from error


def _config(config: Mapping[str, Any] | None, path: str) -> dict[str, Any]:
    if config is not None and not isinstance(config, Mapping):
        raise GraphFormatError(f"{path}: must be a mapping, got {shown(config)}")
    return dict(plain_copy(config or {}, path))


def _seconds(value: float | None, path: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise GraphFormatError(f"{path}: must be a number of seconds, got {shown(value)}")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _check_text(value: object, what: str) -> str:
    if not isinstance(value, str) or not value:
        raise GraphFormatError(f"{what} must be a non-empty string, got {shown(value)}")
    return value


def _check_optional_text(value: object, what: str) -> None:
    if value is not None:
        _check_text(value, what)
