"""Graph <-> plain JSON, versioned. The only place that knows the document's wire form.

Writing leaves out whatever has its default, so that the form is minimal. Reading is strict: an unknown key, a wrong
type or an unknown version raises `GraphFormatError` with the path. Reading checks the form; the compiler judges the
graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, TypeVar

from docket_celery.errors import GraphFormatError, shown
from docket_celery.graph.elements import NO_RETRY, UNSET, ConstantInput, Edge, Field, FieldInput, Node, Retry
from docket_celery.graph.functions import check_parameter
from docket_celery.graph.plain import plain_copy
from docket_celery.graph.schemas import Schema

if TYPE_CHECKING:
    from docket_celery.graph.document import Graph

VERSION: Final = 1

Part = TypeVar("Part")


def to_dict(graph: Graph) -> dict[str, Any]:
    """The whole document. Sections keep the order of the edits."""
    document: dict[str, Any] = {"version": VERSION, "id": graph.id}
    if graph.max_supersteps is not None:
        document["max_supersteps"] = graph.max_supersteps
    document["fields"] = [field_to_dict(field) for field in graph.fields.values()]
    document["nodes"] = [node_to_dict(node) for node in graph.nodes.values()]
    document["edges"] = [edge_to_dict(edge) for edge in graph.edges.values()]
    document["outputs"] = list(graph.outputs)
    return document


def field_to_dict(field: Field) -> dict[str, Any]:
    written: dict[str, Any] = {"name": field.name}
    if field.is_input:
        written["input"] = True
    if field.schema:
        written["schema"] = plain_copy(field.schema, "schema")
    if field.reducer != "last_value":
        written["reducer"] = field.reducer
    if field.default is not UNSET:
        written["default"] = plain_copy(field.default, "default")
    return written


def node_to_dict(node: Node) -> dict[str, Any]:
    written: dict[str, Any] = {"id": node.id, "call": node.call}
    if node.inputs is not None:
        written["inputs"] = {name: _input_to_dict(source) for name, source in node.inputs.items()}
    if node.writes is not None:
        written["writes"] = node.writes
    if node.retry != NO_RETRY:
        written["retry"] = {
            name: value if name == "max_attempts" else float(value) for name, value in asdict(node.retry).items()
        }
    if node.timeout is not None:
        written["timeout"] = node.timeout
    if node.config:
        written["config"] = plain_copy(node.config, "config")
    if node.queue is not None:
        written["queue"] = node.queue
    if node.detached:
        written["detached"] = True
    return written


def edge_to_dict(edge: Edge) -> dict[str, Any]:
    written: dict[str, Any] = {"from": list(edge.sources) if edge.is_barrier else edge.sources[0], "to": edge.target}
    if edge.when is not None:
        written["when"] = edge.when
    return written


def _input_to_dict(source: FieldInput | ConstantInput) -> dict[str, Any]:
    if isinstance(source, ConstantInput):
        return {"constant": plain_copy(source.value, "constant")}
    written: dict[str, Any] = {"field": source.field}
    if source.path:
        written["path"] = list(source.path)
    if source.optional:
        written["optional"] = True
    return written


def read(document: object) -> dict[str, Any]:
    """The attributes of the graph that `to_dict` wrote."""
    reader = _Reader(document, "$")
    version = reader.take("version", int)
    if version != VERSION:
        raise GraphFormatError(f"$.version: this release reads version {VERSION}, got {shown(version)}")
    attributes = {
        "id": _read_name(reader.take("id", str), "$.id"),
        "max_supersteps": reader.take("max_supersteps", int, None),
        "fields": _keyed("fields", reader.take("fields", list, []), _read_field, lambda field: field.name),
        "nodes": _keyed("nodes", reader.take("nodes", list, []), _read_node, lambda node: node.id),
        "edges": _keyed("edges", reader.take("edges", list, []), _read_edge, lambda edge: edge.id),
        "outputs": tuple(_keyed("outputs", reader.take("outputs", list, []), _read_name, str)),
    }
    reader.finish()
    return attributes


def _read_field(item: object, path: str) -> Field:
    reader = _Reader(item, path)
    schema = plain_copy(reader.take("schema", dict, {}), f"{path}.schema")
    try:
        Schema(schema)
    except GraphFormatError as error:
        raise GraphFormatError(f"{path}.schema: {error}") from error
    default = reader.take("default", object, UNSET)
    field = Field(
        name=_read_name(reader.take("name", str), f"{path}.name"),
        schema=schema,
        reducer=reader.take("reducer", str, "last_value"),
        default=default if default is UNSET else plain_copy(default, f"{path}.default"),
        is_input=reader.take("input", bool, False),
    )
    reader.finish()
    return field


def _read_node(item: object, path: str) -> Node:
    reader = _Reader(item, path)
    inputs = reader.take("inputs", dict, None)
    node = Node(
        id=_read_name(reader.take("id", str), f"{path}.id"),
        call=_read_name(reader.take("call", str), f"{path}.call"),
        inputs=None if inputs is None else _read_inputs(inputs, f"{path}.inputs"),
        writes=reader.take("writes", str, None),
        retry=_read_retry(reader.take("retry", dict, None), f"{path}.retry"),
        timeout=reader.take_number("timeout"),
        config=plain_copy(reader.take("config", dict, {}), f"{path}.config"),
        queue=reader.take("queue", str, None),
        detached=reader.take("detached", bool, False),
    )
    reader.finish()
    return node


def _read_edge(item: object, path: str) -> Edge:
    reader = _Reader(item, path)
    source = reader.take("from", str | list)
    is_barrier = isinstance(source, list)
    sources = [_read_name(one, f"{path}.from") for one in (source if is_barrier else [source])]
    if not sources or len(set(sources)) < len(sources):
        raise GraphFormatError(f"{path}.from: must name sources, each once, got {shown(sources)}")
    edge = Edge(
        sources=tuple(sorted(sources)),
        target=_read_name(reader.take("to", str), f"{path}.to"),
        when=reader.take("when", str, None),
        is_barrier=is_barrier,
    )
    reader.finish()
    return edge


def _read_inputs(inputs: Mapping[Any, object], path: str) -> dict[str, FieldInput | ConstantInput]:
    return {check_parameter(name, path): _read_input(source, f"{path}.{name}") for name, source in inputs.items()}


def _read_input(item: object, path: str) -> FieldInput | ConstantInput:
    reader = _Reader(item, path)
    constant = reader.take("constant", object, UNSET)
    if constant is not UNSET:
        reader.finish()
        return ConstantInput(value=plain_copy(constant, f"{path}.constant"))
    parts = reader.take("path", list, [])
    if not all(type(part) in (str, int) for part in parts):
        raise GraphFormatError(f"{path}.path: must hold keys and list indexes, got {shown(parts)}")
    source = FieldInput(
        field=_read_name(reader.take("field", str), f"{path}.field"),
        path=tuple(parts),
        optional=reader.take("optional", bool, False),
    )
    reader.finish()
    return source


def _read_retry(item: object, path: str) -> Retry:
    if item is None:
        return NO_RETRY
    reader = _Reader(item, path)
    given: dict[str, Any] = {
        name: value
        for name in ("backoff", "factor", "backoff_max", "jitter")
        if (value := reader.take_number(name)) is not None
    }
    attempts = reader.take("max_attempts", int, None)
    reader.finish()
    try:
        return Retry(**given) if attempts is None else Retry(max_attempts=attempts, **given)
    except GraphFormatError as error:
        raise GraphFormatError(f"{path}: {error}") from error


def _read_name(item: object, path: str) -> str:
    if not isinstance(item, str) or not item:
        raise GraphFormatError(f"{path}: must be a non-empty string, got {shown(item)}")
    return item


def _keyed(
    section: str, items: list[object], read: Callable[[object, str], Part], key: Callable[[Part], str]
) -> dict[str, Part]:
    keyed: dict[str, Part] = {}
    for index, item in enumerate(items):
        path = f"$.{section}[{index}]"
        part = read(item, path)
        if key(part) in keyed:
            raise GraphFormatError(f"{path}: {key(part)!r} is there twice")
        keyed[key(part)] = part
    return keyed


_REQUIRED: Final[Any] = object()


class _Reader:
    """Takes the keys of one object, each with its type, and finally refuses what nobody took."""

    def __init__(self, item: object, path: str) -> None:
        if not isinstance(item, Mapping):
            raise GraphFormatError(f"{path}: must be an object, got {shown(item)}")
        self._rest = dict(item)
        self._path = path

    def take(self, key: str, kind: Any, default: Any = _REQUIRED) -> Any:
        """The key's value; a bool is no int. Without the key its default, or `GraphFormatError`."""
        if key not in self._rest:
            if default is _REQUIRED:
                raise GraphFormatError(f"{self._path}.{key}: is missing")
            return default
        value = self._rest.pop(key)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            name = getattr(kind, "__name__", str(kind))
            raise GraphFormatError(f"{self._path}.{key}: must be {name}, got {shown(value)}")
        return value

    def take_number(self, key: str) -> float | None:
        """An optional number, as a float."""
        value = self.take(key, int | float, None)
        if isinstance(value, bool):
            raise GraphFormatError(f"{self._path}.{key}: must be a number, got {shown(value)}")
        try:
            return None if value is None else float(value)
        except OverflowError:
            raise GraphFormatError(f"{self._path}.{key}: is too large") from None

    def finish(self) -> None:
        """Refuses keys that nobody took."""
        if self._rest:
            known = ", ".join(sorted(map(str, self._rest)))
            raise GraphFormatError(f"{self._path}: unknown {known}")
