"""What a run does by itself, each as one moment: it begins, it advances, or it fails for a reason that no node gave."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, TypeAlias

from msgspec import Struct

from docket_celery.errors import InvalidInput, PermanentFailure, shown
from docket_celery.program import RuntimeGraph
from docket_celery.run.document import Failure, JsonValue, OpenInterrupt, Run, RunStatus, Task, next_due
from docket_celery.run.events import EventType
from docket_celery.run.moment import CheckpointType, Continue, Moment, Park, Replaced
from docket_celery.run.values import fresh
from docket_celery.runtime.acceptance import accept
from docket_celery.runtime.barrier import Fired, fire, fold, start_targets, unsatisfied
from docket_celery.runtime.draft import TERMINAL, Draft
from docket_celery.runtime.executor import Attempt, AttemptResult, Executor, NotBegun, Raised
from docket_celery.runtime.inputs import bind
from docket_celery.runtime.interrupts import answered
from docket_celery.runtime.node import NodeContext
from docket_celery.runtime.options import RuntimeOptions
from docket_celery.runtime.plan import Blocked, Ended, Expire, NotDue, plan
from docket_celery.runtime.superstep import TaskOutcome, judge
from docket_celery.runtime.unread import Read, needed_at_barrier, needed_by_nodes, nothing_unread, with_values


class Withheld(Struct, frozen=True, kw_only=True):
    """There is work, and the executor was allowed to begin none of it."""


Advance: TypeAlias = Moment | NotDue | Blocked | Ended | Withheld

_CHECKPOINTS: Final = {RunStatus.DONE: CheckpointType.RUN_DONE, RunStatus.FAILED: CheckpointType.RUN_FAILED}
"""What the commit that closes a superstep is for, where it ends the run."""


def propose_init(
    program: RuntimeGraph, run_id: str, input: Mapping[str, Any], *, now: datetime, options: RuntimeOptions
) -> Moment:
    """The first moment of a new run. `InvalidInput` names the field that is unknown, missing or unfit.

    A plan is enough: no node code is needed. The moment parks, immediately or, with nothing to do, for ever.
    """
    fields = _initial_fields(program, input, options)
    draft = Draft(
        Run(
            id=run_id,
            graph_id=program.graph_id,
            graph_hash=program.graph_hash,
            status=RunStatus.RUNNING,
            step=1,
            checkpoint_seq=0,
            event_seq=0,
            fields=fields,
            outputs=program.outputs,
            started_at=now,
            updated_at=now,
        ),
        at=now,
    )
    draft.emit(EventType.RUN_STARTED, graph_id=program.graph_id, graph_hash=program.graph_hash)
    _open_next(program, draft, start_targets(program, fields), step=1, options=options)
    changes = tuple(Replaced(name=name, value=value) for name, value in fields.items())
    parked = TERMINAL if draft.status.is_terminal else Park(kind="immediate")
    return draft.moment(CheckpointType.RUN_INITIALIZED, parked, changes)


def propose_advance(
    program: RuntimeGraph,
    run: Run,
    *,
    executor: Executor,
    now: Callable[[], datetime],
    fraction: Callable[[], float],
    options: RuntimeOptions,
    resume_floor: datetime | None = None,
    read: Read = nothing_unread,
) -> Advance:
    """The next moment of a run, or why there is none.

    `now` is the vehicle's reading of the database clock; planning uses at least `resume_floor`, so that a run that
    the database found due is not found early here. `read` fetches values that the run has left unread, and is called
    only for those that this moment needs. Calls node code, through `executor`, and writes nothing. Raises
    `CorruptRecord` for a value that only another release of the app can give to its node.
    """
    planned = plan(run, max(now(), resume_floor) if resume_floor is not None else now())
    if isinstance(planned, Expire):
        return _expire(run, planned.interrupts, now())
    if isinstance(planned, NotDue | Blocked | Ended):
        return planned
    run = with_values(run, needed_by_nodes(program, planned.ready), read)
    results = _execute(program, run, planned.ready, executor, options)
    executed = [
        (task, result) for task, result in zip(planned.ready, results, strict=True) if not isinstance(result, NotBegun)
    ]
    if planned.ready and not executed and planned.tasks == run.tasks:
        return Withheld()
    at = now()
    draft = Draft(run, at=at)
    _report_timers(draft, planned.tasks)
    outcomes = [judge(program, task, result, now=at, fraction=fraction, options=options) for task, result in executed]
    for outcome in outcomes:
        _report(draft, outcome)
    fatal = next((outcome.failure for outcome in outcomes if outcome.is_fatal), None)
    if fatal is not None:
        draft.fail(fatal)
        return draft.moment(CheckpointType.RUN_FAILED, TERMINAL)
    tasks = _merged(planned.tasks, outcomes)
    if all(task.state == "finished" for task in tasks):
        return _close(program, draft, tasks, options, read)
    return _pause(draft, tasks, tuple(outcome.interrupt for outcome in outcomes if outcome.interrupt is not None))


def _expire(run: Run, expired: tuple[OpenInterrupt, ...], at: datetime) -> Moment:
    """The defaults as answers. They are committed before a node sees them, so that nobody answers otherwise later."""
    draft = Draft(answered(run, [(interrupt, interrupt.default) for interrupt in expired]), at=at)
    for interrupt in expired:
        draft.emit(EventType.INTERRUPT_EXPIRED, node=interrupt.node, id=interrupt.id, field=interrupt.field)
    return draft.moment(CheckpointType.TASKS_PROGRESSED, Continue())


def propose_failure(run: Run, failure: Failure, *, at: datetime) -> Moment:
    """The run failed for a reason that no node reported; nothing of its open superstep is kept."""
    draft = Draft(run, at=at)
    draft.fail(failure)
    return draft.moment(CheckpointType.RUN_FAILED, TERMINAL)


def _initial_fields(program: RuntimeGraph, input: Mapping[str, Any], options: RuntimeOptions) -> dict[str, JsonValue]:
    if not isinstance(input, Mapping):
        raise InvalidInput(f"the input of a run must be a mapping of fields, got {type(input).__name__}")
    known = [name for name, field_ in program.fields.items() if field_.is_input]
    unknown = sorted(shown(name) for name in input if name not in known)
    if unknown:
        raise InvalidInput(f"graph {program.graph_id!r} takes no input {', '.join(unknown)}; it takes {known}")
    # The plan serves every start of this process; a started run is its caller's to change.
    fields = {name: fresh(field_.initial) for name, field_ in program.fields.items() if field_.has_initial}
    for name in known:
        if name in input:
            fields[name] = accept(program, name, input[name], options)
        elif name not in fields:
            raise InvalidInput(f"graph {program.graph_id!r} needs the input {name!r}")
    return dict(sorted(fields.items()))


def _execute(
    program: RuntimeGraph, run: Run, ready: tuple[Task, ...], executor: Executor, options: RuntimeOptions
) -> list[AttemptResult]:
    """Results of the ready tasks in order; what cannot even be called has failed without being called."""
    prepared: list[Attempt | Raised] = []
    for task in ready:
        try:
            prepared.append(_attempt(program, run, task, options))
        except PermanentFailure as error:
            prepared.append(Raised(error=error))
    results = iter(executor.execute([entry for entry in prepared if isinstance(entry, Attempt)]))
    return [next(results) if isinstance(entry, Attempt) else entry for entry in prepared]


def _attempt(program: RuntimeGraph, run: Run, task: Task, options: RuntimeOptions) -> Attempt:
    node = program.nodes[task.node]

    def context(*, deadline: float | None, monotonic: Callable[[], float]) -> NodeContext:
        activation = f"{run.id}:{task.task_id}"
        key = f"{activation}:{task.asked}.{task.attempt}"
        return NodeContext(
            run_id=run.id,
            graph_id=run.graph_id,
            graph_hash=run.graph_hash,
            node=node.id,
            step=task.step,
            attempt=task.attempt,
            task_id=key,
            idempotency_key=key,
            activation_key=activation,
            config=fresh(node.config),
            deadline=deadline,
            monotonic=monotonic,
        )

    state = {**run.fields, **task.answers} if task.answers else run.fields
    timeout = options.max_attempt_elapsed if node.timeout is None else node.timeout
    return Attempt(node=node, arguments=bind(node, state), context=context, timeout=timeout)


def _report(draft: Draft, outcome: TaskOutcome) -> None:
    """Events of one executed attempt."""
    task, failure = outcome.task, outcome.failure
    if failure is not None:
        attempt = task.attempt - 1 if task.state == "retrying" else task.attempt
        draft.emit(
            EventType.NODE_FAILED,
            node=task.node,
            attempt=attempt,
            code=failure.code,
            message=failure.message,
            **({} if failure.error_type is None else {"error_type": failure.error_type}),
        )
    if task.state == "retrying":
        draft.emit(EventType.NODE_RETRY_SCHEDULED, node=task.node, attempt=task.attempt, due_at=_iso(task.due_at))
    elif outcome.interrupt is not None:
        asked = outcome.interrupt
        deadline = {} if asked.deadline is None else {"due_at": _iso(asked.deadline)}
        draft.emit(EventType.INTERRUPT_OPENED, node=task.node, id=asked.id, field=asked.field, **deadline)
    elif task.state == "sleeping":
        draft.emit(EventType.TIMER_SET, node=task.node, attempt=task.attempt, due_at=_iso(task.due_at))
    elif task.state == "finished":
        draft.emit(EventType.NODE_COMPLETED, node=task.node, attempt=task.attempt, writes=sorted(task.writes or {}))


def _report_timers(draft: Draft, tasks: tuple[Task, ...]) -> None:
    """Events of the sleeping tasks whose time has come."""
    for before, task in zip(draft.before.tasks, tasks, strict=True):
        if before.state == "sleeping" and task.state == "finished":
            draft.emit(EventType.NODE_COMPLETED, node=task.node, attempt=task.attempt, writes=sorted(task.writes or {}))


def _merged(tasks: tuple[Task, ...], outcomes: list[TaskOutcome]) -> tuple[Task, ...]:
    changed = {outcome.task.node: outcome.task for outcome in outcomes}
    return tuple(changed.get(task.node, task) for task in tasks)


def _pause(draft: Draft, tasks: tuple[Task, ...], opened: tuple[OpenInterrupt, ...]) -> Moment:
    """Some tasks are not finished yet: keep what the others returned, and park for the first thing to come.

    A task that is still ready was not begun; it is due at once, so the run goes on.
    """
    interrupts = (*draft.before.interrupts, *opened)
    draft.change(tasks=tasks, interrupts=interrupts)
    if any(task.state == "ready" for task in tasks):
        return draft.moment(CheckpointType.TASKS_PROGRESSED, Continue())
    due = next_due(tasks, interrupts)
    if due is None:
        draft.change(status=RunStatus.WAITING)
        return draft.moment(CheckpointType.TASKS_PROGRESSED, Park(kind="external"))
    return draft.moment(CheckpointType.TASKS_PROGRESSED, Park(kind="at", at=due))


def _close(program: RuntimeGraph, draft: Draft, tasks: tuple[Task, ...], options: RuntimeOptions, read: Read) -> Moment:
    """Every task is finished: the superstep's barrier."""
    before = with_values(draft.before, needed_at_barrier(program, tasks), read)
    folded = fold(program, before.fields, before.unread, tasks, options)
    completed = tuple(task.node for task in tasks)
    fired = fire(program, completed, folded.fields, before.arrived)
    failure = folded.failure or fired.failure
    if failure is not None:
        draft.fail(failure)
        return draft.moment(CheckpointType.RUN_FAILED, TERMINAL)
    draft.change(fields=folded.fields, unread=before.unread - folded.fields.keys(), interrupts=())
    draft.emit(EventType.STEP_COMMITTED, nodes=list(completed))
    _open_next(program, draft, fired, step=before.step + 1, options=options)
    checkpoint = _CHECKPOINTS.get(draft.status, CheckpointType.STEP_COMMITTED)
    return draft.moment(checkpoint, TERMINAL if draft.status.is_terminal else Continue(), folded.changes)


def _open_next(program: RuntimeGraph, draft: Draft, fired: Fired, *, step: int, options: RuntimeOptions) -> None:
    """Opens the superstep that `fired` calls for, or ends the run: done, or failed for a bound or a barrier."""
    bound = program.max_supersteps if program.max_supersteps is not None else options.max_supersteps
    if fired.failure is not None:
        draft.fail(fired.failure)
    elif not fired.targets and fired.arrived:
        draft.fail(unsatisfied(program, fired.arrived))
    elif not fired.targets:
        draft.end(RunStatus.DONE)
        draft.emit(EventType.RUN_DONE)
    elif bound is not None and step > bound:
        waiting = ", ".join(fired.targets)
        message = f"superstep {step} is beyond max_supersteps {bound}; it would have run {waiting}"
        draft.fail(Failure(code="max_supersteps", message=message, details={"max_supersteps": bound}))
    else:
        tasks = tuple(Task(node=target, step=step) for target in fired.targets)
        draft.change(step=step, tasks=tasks, arrived=fired.arrived)


def _iso(instant: datetime | None) -> str | None:
    return None if instant is None else instant.isoformat()
