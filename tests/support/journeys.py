"""Takes a run to its end through vehicles that may be killed on the way, and tells what it left behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from support.faults import Fault, Killed
from support.rig import Rig

from docket_celery.graph.document import Graph
from docket_celery.run.document import Run, RunStatus
from docket_celery.run.events import Event
from docket_celery.testing import run_inline

MOST_DRAINS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Legacy:
    """What remains of a run, but for instants."""

    status: RunStatus
    step: int
    fields: Mapping[str, Any]
    output: Mapping[str, Any]
    failure: str | None
    events: tuple[tuple[Any, ...], ...]

    @classmethod
    def of(cls, run: Run, events: tuple[Event, ...]) -> Legacy:
        return cls(
            status=run.status,
            step=run.step,
            fields=dict(run.fields),
            output=run.output,
            failure=None if run.failure is None else run.failure.message,
            events=tuple((event.seq, event.type, event.step, event.node, _timeless(event.data)) for event in events),
        )

    @property
    def without_events(self) -> Legacy:
        """The same but for the events. Timers that come due while a dead process's claim expires fire together, and
        what happens in one superstep is then told in another order."""
        return replace(self, events=())


def inline(graph: Graph, input: Mapping[str, Any], answers: Mapping[str, Any]) -> Legacy:
    """Without any store."""
    result = run_inline(graph, input, resolve=answers)
    return Legacy.of(result.run, result.events)


def driven(
    graph: Graph,
    input: Mapping[str, Any],
    answers: Mapping[str, Any],
    *,
    kill: Callable[[int], Fault | None] = lambda number: None,
    **options: Any,
) -> tuple[Legacy, int]:
    """Through vehicles, one claim after the other; and how many commits they made or died over.

    `kill` says for each commit, numbered from 1, whether the process dies before it or right after it.
    """
    rig = Rig(**options)
    rig.start(graph, dict(input))
    commits = 0

    def planned() -> Fault | None:
        nonlocal commits
        commits += 1
        return kill(commits)

    rig.runs.always("commit", planned)
    for _ in range(MOST_DRAINS):
        run, info = rig.run(), rig.info()
        assert info.poisoned_at is None, info.poison_reason
        if run.status.is_terminal:
            return Legacy.of(run, rig.events()), commits
        is_due = info.wake_at is None or info.wake_at <= rig.clock.now()
        open_ = next((open_ for open_ in run.interrupts if open_.field in answers), None)
        if open_ is not None and (run.status is RunStatus.WAITING or not is_due):
            rig.verbs.resolve_interrupt(run.id, open_.id, answers[open_.field])
        elif info.wake_at is not None and not is_due:
            rig.advance((info.wake_at - rig.clock.now()).total_seconds())
        else:
            _drained(rig)
    raise AssertionError(f"not at its end after {MOST_DRAINS} drains: {rig.info()}")


def killed(*, applied: bool) -> Fault:
    """The process dies around a commit: right after it when `applied`, else right before."""
    return Fault(error=Killed(), applied=applied)


def _drained(rig: Rig) -> None:
    lease = rig.lease()
    # A dead process gives nothing back.
    rig.runs.always("release_claim", lambda: Fault(error=Killed()))
    try:
        rig.drain(lease)
    except Killed:
        if rig.info().claimed_at is not None:
            rig.expire()
    finally:
        rig.runs.always("release_claim", lambda: None)


def _timeless(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name != "due_at"}
