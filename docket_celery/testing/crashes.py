"""Crashes on purpose: a graph runs again with the process dying around each commit, and must come to the same.

What changes the outcome is a node that is not the same function of its arguments at every call: it counts its calls,
draws random numbers, reads the time, or keeps something in memory between steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Unpack

from docket_celery.graph.document import Graph
from docket_celery.run.document import JsonValue
from docket_celery.run.events import Event
from docket_celery.testing.inline import InlineOptions, InlineResult, InlineRun, run_inline


class CrashChangedOutcome(AssertionError):
    """A run that a process died over came to something else than the undisturbed one; the message says where."""


def run_with_crashes(
    graph: Graph, input: Mapping[str, Any] | None = None, **options: Unpack[InlineOptions]
) -> InlineResult:
    """Runs the graph undisturbed, then once more for a crash before each commit, and for one after each.

    After a crash the run goes on from what had been committed, written and read as a store would; what the nodes did
    since is lost, and they are called again. `CrashChangedOutcome` names the crash and the first difference in status,
    failure, fields or events; instants are not compared. With n commits every node is called about n times as often.
    Returns the undisturbed run.
    """
    undisturbed = run_inline(graph, input, **options)
    for number in range(2, len(undisturbed.history) + 1):
        for committed in (False, True):
            disturbed = _crashed(InlineRun(graph, input, **options), number, committed=committed)
            difference = next(_differences(undisturbed, disturbed), None)
            if difference is not None:
                raise CrashChangedOutcome(f"{_place(undisturbed, number, committed=committed)}: {difference}")
    return undisturbed


def _crashed(run: InlineRun, number: int, *, committed: bool) -> InlineResult:
    """The run's end with a crash before or after its commit of this number; starting it was the first."""
    for _ in range(2, number):
        run.step()
    if committed:
        run.step()
    else:
        run.propose()
    run.reload()
    return run.finish()


def _place(undisturbed: InlineResult, number: int, *, committed: bool) -> str:
    before = undisturbed.history[number - 2]
    active = ", ".join(task.node for task in before.tasks if task.state != "finished") or "no node"
    return f"crash {'after' if committed else 'before'} commit {number} (superstep {before.step}: {active})"


def _differences(expected: InlineResult, found: InlineResult) -> Iterator[str]:
    for what, one, other in (
        ("status", expected.status.value, found.status.value),
        ("failure", _failure(expected), _failure(found)),
    ):
        if one != other:
            yield f"{what} became {other!r:.300} instead of {one!r:.300}"
    for name in sorted({*expected.fields, *found.fields}):
        one, other = (result.fields.get(name, "no value") for result in (expected, found))
        if repr(one) != repr(other):
            yield f"field {name!r} became {other!r:.300} instead of {one!r:.300}"
    for event, again in zip(expected.events, found.events, strict=False):
        if _told(event) != _told(again):
            yield f"event {event.seq} became {_told(again)!r:.300} instead of {_told(event)!r:.300}"
    if len(expected.events) != len(found.events):
        yield f"there were {len(found.events)} events instead of {len(expected.events)}"


def _failure(result: InlineResult) -> str | None:
    failure = result.run.failure
    return None if failure is None else f"{failure.code}: {failure.message}"


def _told(event: Event) -> tuple[str, int, str | None, dict[str, JsonValue]]:
    data = {name: value for name, value in event.data.items() if name != "due_at"}
    return event.type.value, event.step, event.node, data
