"""Closing a superstep: fold the writes, judge the guards, fire edges and joins.

Both meanings of an incoming edge live here. An edge with one source fires each time that source completes; a fan-in
barrier collects its sources' completions over as many supersteps as it takes, and fires once it has them all.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from docket_celery.errors import GuardError, ValueRefused
from docket_celery.graph.elements import FINISH, START
from docket_celery.program import RuntimeEdge, RuntimeField, RuntimeGraph
from docket_celery.run.document import Failure, JsonValue, Task
from docket_celery.run.moment import Appended, Change, Replaced
from docket_celery.run.values import normalise
from docket_celery.runtime.failures import printable
from docket_celery.runtime.options import RuntimeOptions


class Folded(Struct, frozen=True, kw_only=True):
    """State after a superstep's writes and how it differs from before, or why the writes do not add up."""

    fields: Mapping[str, JsonValue]
    changes: tuple[Change, ...]
    failure: Failure | None = None


class Fired(Struct, frozen=True, kw_only=True):
    """Nodes that come next (sorted), barriers still under way, or the failure of a guard."""

    targets: tuple[str, ...]
    arrived: Mapping[str, tuple[str, ...]]
    failure: Failure | None = None


def fold(
    program: RuntimeGraph,
    fields: Mapping[str, JsonValue],
    unread: frozenset[str],
    tasks: tuple[Task, ...],
    options: RuntimeOptions,
) -> Folded:
    """Folds the tasks' answers and writes onto the committed fields, in order of node id, answers first.

    Each write was checked when its node returned; what they come to together is checked here. A list that is appended
    to is bounded by each append, not as a whole; one among the `unread` stays so.
    """
    writes: dict[str, list[JsonValue]] = {}
    for task in sorted(tasks, key=lambda task: task.node):
        for source in (task.answers, task.writes or {}):
            for name, value in source.items():
                writes.setdefault(name, []).append(value)
    after = dict(fields)
    changes: list[Change] = []
    for name in sorted(writes):
        field = program.fields[name]
        appends = field.reducer.appends
        if not (appends and name in unread):
            try:
                after[name] = _reduce(field, fields, writes[name], options)
            except ValueRefused as refusal:
                message = printable(f"field {name!r}: {refusal}")
                failure = Failure(code=refusal.code, message=message, details={"field": name})
                return Folded(fields=fields, changes=(), failure=failure)
        if appends:
            items = tuple(item for write in writes[name] for item in write)
            if items:
                changes.append(Appended(name=name, items=items))
        else:
            changes.append(Replaced(name=name, value=after[name]))
    return Folded(fields=after, changes=tuple(changes))


def fire(
    program: RuntimeGraph,
    completed: tuple[str, ...],
    fields: Mapping[str, JsonValue],
    arrived: Mapping[str, tuple[str, ...]],
) -> Fired:
    """What the completion of these nodes sets off, judged on the given fields."""
    collected = {edge_id: set(seen) for edge_id, seen in arrived.items()}
    targets: set[str] = set()
    for source in sorted(completed):
        for edge in program.outgoing.get(source, ()):
            if edge.is_barrier and not _arrive(edge, source, collected):
                continue
            try:
                taken = edge.guard is None or edge.guard.holds(fields)
            except GuardError as error:
                failure = Failure(code="guard_failed", message=f"edge {edge.id}: {error}", details={"edge": edge.id})
                return Fired(targets=(), arrived={}, failure=failure)
            if taken:
                targets.add(edge.target)
    waiting = {edge_id: tuple(sorted(collected[edge_id])) for edge_id in sorted(collected)}
    return Fired(targets=tuple(sorted(targets - {FINISH})), arrived=waiting)


def unsatisfied(program: RuntimeGraph, arrived: Mapping[str, tuple[str, ...]]) -> Failure:
    """The failure of a run that has nothing left to do while a barrier still waits."""
    edges = {edge.id: edge for outgoing in program.outgoing.values() for edge in outgoing}
    barriers: list[JsonValue] = []
    for edge_id, seen in sorted(arrived.items()):
        edge = edges[edge_id]
        missing = [source for source in edge.sources if source not in seen]
        barriers.append({"edge": edge_id, "target": edge.target, "seen": list(seen), "missing": missing})
    first = barriers[0]
    message = f"barrier {first['edge']} can never fire: {first['missing']} did not complete, {first['seen']} did"
    return Failure(code="unsatisfied_barrier", message=message, details={"barriers": barriers})


def start_targets(program: RuntimeGraph, fields: Mapping[str, JsonValue]) -> Fired:
    """What a new run begins with."""
    return fire(program, (START,), fields, {})


def _reduce(
    field: RuntimeField, fields: Mapping[str, JsonValue], writes: list[JsonValue], options: RuntimeOptions
) -> JsonValue:
    """The field's next value; `ValueRefused` when a value that several writes add up to cannot be kept."""
    reduced = field.reducer.reduce(fields.get(field.name), field.name in fields, writes)
    if field.reducer.appends or not field.reducer.has_zero:
        return reduced
    kept = normalise(reduced, f"$.{field.name}", max_bytes=options.max_value_bytes)
    problem = field.schema.problem(kept)
    if problem is not None:
        raise ValueRefused(f"$.{field.name}", problem, code="invalid_write")
    return kept


def _arrive(edge: RuntimeEdge, source: str, collected: dict[str, set[str]]) -> bool:
    """Notes one arrival; True, and the barrier starts afresh, when it was the last one missing."""
    seen = collected.setdefault(edge.id, set())
    seen.add(source)
    if len(seen) < len(edge.sources):
        return False
    del collected[edge.id]
    return True
