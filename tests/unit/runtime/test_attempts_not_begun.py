"""An executor may be kept from beginning an attempt: it stays due, and what others returned is kept beside it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from docket_celery import START, Graph, Retry
from docket_celery.compiler import compile
from docket_celery.compiler.nodes import local_resolver
from docket_celery.run.document import Failure, Run, RunStatus
from docket_celery.run.events import EventType
from docket_celery.run.moment import CheckpointType, Continue, Moment, Park
from docket_celery.runtime.executor import Attempt, AttemptResult, InlineExecutor, IsVoid, MayBegin, always, never
from docket_celery.runtime.loop import Advance, Withheld, propose_advance, propose_failure, propose_init
from docket_celery.runtime.options import RuntimeOptions

NOW = datetime(2026, 1, 1, tzinfo=UTC)
OPTIONS = RuntimeOptions()


def fails() -> None:
    raise OSError("again")


GRAPH = Graph("wide").field("log", list[str], reducer="append")
for name in ("a", "b", "c"):
    GRAPH = GRAPH.node(name, lambda ctx: {"log": ctx.node}).edge(START, name)
GRAPH = GRAPH.node("flaky", fails, retry=Retry(max_attempts=2, backoff=5.0)).edge(START, "flaky")
PROGRAM = compile(GRAPH, local_resolver(GRAPH))


class Sparing:
    """Lets only some nodes begin."""

    def __init__(self, *nodes: str) -> None:
        self._nodes = nodes
        self._inline = InlineExecutor(lambda: 0.0)

    def execute(
        self, attempts: Sequence[Attempt], may_begin: MayBegin = always, is_void: IsVoid = never
    ) -> Sequence[AttemptResult]:
        return [result for one in attempts for result in self._inline.execute([one], self._lets(one.node.id))]

    def _lets(self, node: str) -> MayBegin:
        return lambda _: node in self._nodes


def advanced(run: Run, *nodes: str) -> Advance:
    return propose_advance(
        PROGRAM, run, executor=Sparing(*nodes), now=lambda: NOW, fraction=lambda: 0.0, options=OPTIONS
    )


def started() -> Run:
    return propose_init(PROGRAM, "run-1", {}, now=NOW, options=OPTIONS).run


def test_what_was_not_begun_stays_ready_and_the_run_goes_on() -> None:
    moment = advanced(started(), "b", "flaky")
    assert isinstance(moment, Moment)
    assert moment.disposition == Continue()
    assert moment.checkpoint_type is CheckpointType.TASKS_PROGRESSED
    assert [(task.node, task.state, task.attempt) for task in moment.run.tasks] == [
        ("a", "ready", 1),
        ("b", "finished", 1),
        ("c", "ready", 1),
        ("flaky", "retrying", 2),
    ]
    assert [event.node for event in moment.events] == ["b", "flaky", "flaky"]


def test_the_rest_is_begun_by_the_next_moment_and_nothing_twice() -> None:
    first = advanced(started(), "b", "flaky")
    assert isinstance(first, Moment)
    second = advanced(first.run, "a", "b", "c", "flaky")
    assert isinstance(second, Moment)
    assert [event.node for event in second.events] == ["a", "c"]
    assert isinstance(second.disposition, Park)
    assert second.disposition.kind == "at"


def test_nothing_is_proposed_when_nothing_was_begun() -> None:
    assert advanced(started()) == Withheld()


def test_a_failure_from_outside_ends_the_run_with_nothing_open() -> None:
    run = started()
    moment = propose_failure(run, Failure(code="not_storable", message="too deep"), at=NOW)
    assert (moment.run.status, moment.run.tasks, moment.run.checkpoint_seq) == (RunStatus.FAILED, (), 2)
    assert [event.type for event in moment.events] == [EventType.RUN_FAILED]
    assert moment.disposition == Park(kind="terminal")
