"""Which values of a run a superstep cannot do without, where the store has left large ones unread. Pure decisions.

Asked at two points: before nodes are called, for what they take in; and when the superstep closes and it is known what
they have written, for what reducers and guards go by. A field that none of them touches is never read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

from docket_celery.graph.elements import FieldInput
from docket_celery.program import RuntimeGraph
from docket_celery.run.document import JsonValue, Run, Task

Read: TypeAlias = Callable[[frozenset[str]], Mapping[str, JsonValue]]
"""Fetches the committed values of these unread fields. What it raises passes through the runtime."""


def nothing_unread(names: frozenset[str]) -> Mapping[str, JsonValue]:
    """The `Read` of whoever has whole runs: never called."""
    raise AssertionError(f"the values of {sorted(names)} were left unread, and nobody can read them")


def with_values(run: Run, needed: Iterator[str], read: Read) -> Run:
    """The run, none of whose needed values is unread any more. `needed` is worked out only if there is one unread."""
    names = run.unread.intersection(needed) if run.unread else run.unread
    return run.having_read(read(names)) if names else run


def needed_by_nodes(program: RuntimeGraph, tasks: Iterable[Task]) -> Iterator[str]:
    """Fields that the nodes of these tasks take their arguments from."""
    for task in tasks:
        for parameter in program.nodes[task.node].parameters:
            source = parameter.source
            if isinstance(source, FieldInput) and source.field not in task.answers:
                yield source.field


def needed_at_barrier(program: RuntimeGraph, tasks: Iterable[Task]) -> Iterator[str]:
    """Fields whose committed value the barrier of these finished tasks goes by: what they have written is reduced onto
    it, or a guard judges it as it is.
    """
    replaced = set()
    for name in {name for task in tasks for name in (*task.answers, *(task.writes or ()))}:
        reducer = program.fields[name].reducer
        if reducer.needs_committed:
            yield name
        elif reducer.replaces:
            replaced.add(name)
    for edge in (edge for task in tasks for edge in program.outgoing.get(task.node, ())):
        if edge.guard is not None:
            yield from (name for name in edge.guard.fields if name not in replaced)
