"""For tests of graphs: the production runtime without a database, a broker or a wait.

`run_inline` drives a graph from its input to its end in this thread. Time is a manual clock: a retry or a sleep moves
it forward instead of taking time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from docket_celery.compiler import compile
from docket_celery.compiler.nodes import Resolver, chain, local_resolver
from docket_celery.graph.document import Graph
from docket_celery.run.document import JsonValue, OpenInterrupt, Run, RunStatus
from docket_celery.run.events import Event
from docket_celery.run.moment import Moment
from docket_celery.runtime.executor import InlineExecutor
from docket_celery.runtime.loop import propose_advance, propose_init
from docket_celery.runtime.mutations import resolve_interrupt
from docket_celery.runtime.options import RuntimeOptions
from docket_celery.runtime.plan import Blocked, NotDue


class ManualClock:
    """A clock that moves only when told to."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._start = start
        self._elapsed = timedelta(0)

    def now(self) -> datetime:
        return self._start + self._elapsed

    def monotonic(self) -> float:
        return self._elapsed.total_seconds()

    def advance(self, by: timedelta | float) -> datetime:
        """Moves time on, by a timedelta or by seconds, and returns the new instant."""
        self._elapsed += by if isinstance(by, timedelta) else timedelta(seconds=by)
        return self.now()


class SequentialIds:
    """Ids that count: `run-1`, `token-1`, ..."""

    def __init__(self) -> None:
        self._runs = itertools.count(1)
        self._tokens = itertools.count(1)

    def run_id(self) -> str:
        return f"run-{next(self._runs)}"

    def token(self) -> str:
        return f"token-{next(self._tokens)}"


@dataclass(frozen=True, slots=True)
class FixedJitter:
    """Always draws the same fraction."""

    value: float = 0.0

    def fraction(self) -> float:
        return self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class InlineResult:
    """What became of an inline run: its last state, everything it reported, and the state after each commit."""

    run: Run
    events: tuple[Event, ...]
    history: tuple[Run, ...] = field(repr=False)

    @property
    def status(self) -> RunStatus:
        return self.run.status

    @property
    def fields(self) -> Mapping[str, JsonValue]:
        return self.run.fields

    @property
    def output(self) -> dict[str, JsonValue]:
        return self.run.output

    @property
    def interrupts(self) -> tuple[OpenInterrupt, ...]:
        """Open questions of a run that stopped because nobody answered."""
        return self.run.interrupts


def run_inline(
    graph: Graph,
    input: Mapping[str, Any] | None = None,
    *,
    resolve: Mapping[str, Any] | Callable[[OpenInterrupt], Any] | None = None,
    resolver: Resolver | None = None,
    clock: ManualClock | None = None,
    options: RuntimeOptions | None = None,
    jitter: float = 0.0,
) -> InlineResult:
    """Runs a graph to its end, or to the first interrupt that `resolve` has no answer for.

    resolve   answers by field name, or a function of the open interrupt
    resolver  finds node code by name; the functions given to the graph need none

    Raises `InvalidGraph` and `InvalidInput` as publishing and starting would. A failing run is a result, not an error.
    """
    clock = clock or ManualClock()
    options = options or RuntimeOptions()
    program = compile(
        graph,
        local_resolver(graph) if resolver is None else chain(local_resolver(graph), resolver),
        default_max_supersteps=options.max_supersteps,
        max_value_bytes=options.max_value_bytes,
    )
    executor = InlineExecutor(clock.monotonic)
    moment = propose_init(program, "run-inline", input or {}, now=clock.now(), options=options)
    events, history = list(moment.events), [moment.run]
    while not history[-1].status.is_terminal:
        run = history[-1]
        proposed = propose_advance(
            program, run, executor=executor, now=clock.now, fraction=lambda: jitter, options=options
        )
        if isinstance(proposed, NotDue):
            clock.advance(proposed.resume_at - clock.now())
            continue
        if isinstance(proposed, Blocked):
            answered = next((open_ for open_ in run.interrupts if _answerable(open_, resolve)), None)
            if answered is None:
                break
            answer = _answer(answered, resolve)
            resolved = resolve_interrupt(program, run, answered.id, answer, now=clock.now(), options=options)
            assert resolved is not None, "an open interrupt has not been answered before"
            proposed = resolved
        assert isinstance(proposed, Moment), "a run that is not terminal advances, waits or is blocked"
        events += proposed.events
        history.append(proposed.run)
    return InlineResult(run=history[-1], events=tuple(events), history=tuple(history))


def _answerable(interrupt: OpenInterrupt, resolve: Mapping[str, Any] | Callable[[OpenInterrupt], Any] | None) -> bool:
    return callable(resolve) or (resolve is not None and interrupt.field in resolve)


def _answer(interrupt: OpenInterrupt, resolve: Mapping[str, Any] | Callable[[OpenInterrupt], Any] | None) -> Any:
    assert resolve is not None
    return resolve(interrupt) if callable(resolve) else resolve[interrupt.field]
