"""A run in the calling thread, in the production runtime: to its end at once, or moment by moment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypedDict, Unpack

from msgspec.structs import replace

from docket_celery.compiler import compile, graph_hash
from docket_celery.compiler.nodes import Resolver, chain, local_resolver
from docket_celery.graph.document import Graph
from docket_celery.run.codec import decode_state, encode_state
from docket_celery.run.document import JsonValue, OpenInterrupt, Run, RunStatus
from docket_celery.run.events import Event
from docket_celery.run.moment import Moment
from docket_celery.run.values import decode, encode
from docket_celery.runtime.executor import InlineExecutor
from docket_celery.runtime.loop import propose_advance, propose_init
from docket_celery.runtime.mutations import resolve_interrupt
from docket_celery.runtime.options import RuntimeOptions
from docket_celery.runtime.plan import Blocked, NotDue
from docket_celery.testing.fixed import ManualClock
from docket_celery.testing.stubs import with_stubs

UNANSWERED: Final[Any] = type("Unanswered", (), {"__repr__": lambda self: "UNANSWERED"})()
"""Returned by a `resolve` function that leaves an interrupt open, for its deadline or for good."""

Resolve: TypeAlias = Mapping[str, Any] | Callable[[OpenInterrupt], Any]


class InlineOptions(TypedDict, total=False):
    """How a run is carried out.

    resolve   answers by field name, or a function of the open interrupt, which may return `UNANSWERED`
    resolver  finds node code by name; the functions given to the graph need none
    stubs     by node id: a function, a value or an exception in place of the node's own code
    clock     the time, which the run moves on; otherwise one of its own
    options   the bounds that a worker's configuration would set
    jitter    the random share of retry delays, from 0 to 1
    """

    resolve: Resolve | None
    resolver: Resolver | None
    stubs: Mapping[str, Any]
    clock: ManualClock | None
    options: RuntimeOptions | None
    jitter: float


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


class InlineRun:
    """A run that has been started and moves when told to: `step()` by one commit, `finish()` as far as it can.

    Raises `InvalidGraph` and `InvalidInput` as publishing and starting would.
    """

    def __init__(self, graph: Graph, input: Mapping[str, Any] | None = None, **options: Unpack[InlineOptions]) -> None:
        self.clock = options.get("clock") or ManualClock()
        self._options = options.get("options") or RuntimeOptions()
        self._resolve = options.get("resolve")
        self._jitter = options.get("jitter", 0.0)
        self._executor = InlineExecutor(self.clock.monotonic)
        stubbed = with_stubs(graph, options.get("stubs", {}))
        resolver = options.get("resolver")
        program = compile(
            stubbed,
            local_resolver(stubbed) if resolver is None else chain(local_resolver(stubbed), resolver),
            default_max_supersteps=self._options.max_supersteps,
            max_value_bytes=self._options.max_value_bytes,
        )
        self._program = replace(program, graph_hash=graph_hash(graph))
        begun = propose_init(
            self._program, "run-inline", {} if input is None else input, now=self.clock.now(), options=self._options
        )
        self.run = begun.run
        self._events, self._history = list(begun.events), [begun.run]

    @property
    def result(self) -> InlineResult:
        """What has become of the run so far."""
        return InlineResult(run=self.run, events=tuple(self._events), history=tuple(self._history))

    def step(self) -> Moment | None:
        """The next moment, committed; None when the run has ended or waits for an answer that nobody has.

        Time moves on to whatever is due next. An interrupt that `resolve` answers is answered before that.
        """
        moment = self.propose()
        if moment is not None:
            self._commit(moment)
        return moment

    def finish(self) -> InlineResult:
        """Steps until nothing moves any more."""
        while self.step() is not None:
            pass
        return self.result

    def resolve(self, interrupt_id: str, answer: Any) -> Moment | None:
        """Answers an open interrupt as `docket.resolve_interrupt` would, with its errors; None if it was answered."""
        moment = resolve_interrupt(
            self._program, self.run, interrupt_id, answer, now=self.clock.now(), options=self._options
        )
        if moment is not None:
            self._commit(moment)
        return moment

    def propose(self) -> Moment | None:
        """The next moment with its nodes executed, but not committed: what a crash before the commit would lose."""
        while not self.run.status.is_terminal:
            proposed = propose_advance(
                self._program,
                self.run,
                executor=self._executor,
                now=self.clock.now,
                fraction=lambda: self._jitter,
                options=self._options,
            )
            if isinstance(proposed, Moment):
                return proposed
            answered = self._answered()
            if answered is not None or isinstance(proposed, Blocked):
                return answered
            assert isinstance(proposed, NotDue), "a run that is not terminal advances, waits or is blocked"
            self.clock.advance(proposed.resume_at - self.clock.now())
        return None

    def reload(self) -> None:
        """Goes on from what a store would have kept of the run: its values and its document, written and read."""
        state = decode_state(encode_state(self.run))
        self.run = replace(
            self.run,
            fields={name: decode(encode(value)) for name, value in self.run.fields.items()},
            tasks=state.tasks,
            interrupts=state.interrupts,
            arrived=state.arrived,
            answered=state.answered,
            outputs=state.outputs,
            failure=state.failure,
        )

    def _commit(self, moment: Moment) -> None:
        self.run = moment.run
        self._events += moment.events
        self._history.append(moment.run)

    def _answered(self) -> Moment | None:
        """The first open interrupt answered that `resolve` has an answer for."""
        for interrupt in self.run.interrupts:
            answer = self._answer(interrupt)
            if answer is not UNANSWERED:
                return resolve_interrupt(
                    self._program, self.run, interrupt.id, answer, now=self.clock.now(), options=self._options
                )
        return None

    def _answer(self, interrupt: OpenInterrupt) -> Any:
        if callable(self._resolve):
            return self._resolve(interrupt)
        return (self._resolve or {}).get(interrupt.field, UNANSWERED)


def run_inline(graph: Graph, input: Mapping[str, Any] | None = None, **options: Unpack[InlineOptions]) -> InlineResult:
    """Runs a graph to its end, or to an interrupt without a deadline that `resolve` has no answer for.

    The options are those of `InlineOptions`. Raises `InvalidGraph` and `InvalidInput` as publishing and starting
    would. A failing run is a result, not an error.
    """
    return InlineRun(graph, input, **options).finish()
