"""From what the nodes did to what becomes of their tasks: finished, retried, asleep, asking, or failed.

Every value is brought into its committed form here, once: what cannot be kept is the node's permanent failure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from docket_celery.errors import DocketError, InvalidInput, ValueRefused
from docket_celery.graph.schemas import json_schema_of
from docket_celery.program import RuntimeGraph, RuntimeNode
from docket_celery.run.document import Failure, JsonValue, OpenInterrupt, Task
from docket_celery.run.values import normalise
from docket_celery.runtime.acceptance import write_problem
from docket_celery.runtime.executor import Raised, Returned
from docket_celery.runtime.failures import failure_of, is_permanent, printable
from docket_celery.runtime.interrupts import fitting, question_id
from docket_celery.runtime.node import Interrupt, Sleep
from docket_celery.runtime.options import RuntimeOptions


class TaskOutcome(Struct, frozen=True, kw_only=True):
    """What became of one task. `failure` is the attempt's; with it, a task that is not `retrying` fails the run."""

    task: Task
    interrupt: OpenInterrupt | None = None
    failure: Failure | None = None

    @property
    def is_fatal(self) -> bool:
        return self.failure is not None and self.task.state != "retrying"


class _Refused(Exception):
    """Inside this module: the node's result breaks a rule; permanent."""

    def __init__(self, code: str, message: str, **details: JsonValue) -> None:
        self.failure = Failure(code=code, message=printable(message), details=details)
        super().__init__(message)


def judge(
    program: RuntimeGraph,
    task: Task,
    result: Returned | Raised,
    *,
    now: datetime,
    fraction: Callable[[], float],
    options: RuntimeOptions,
) -> TaskOutcome:
    """The outcome of one executed attempt. `fraction` draws the jitter of a retry's delay."""
    node = program.nodes[task.node]
    if isinstance(result, Raised):
        return _failed(node, task, result, now, fraction)
    try:
        return _returned(program, node, task, result.value, now, options)
    except _Refused as refusal:
        return TaskOutcome(task=task, failure=replace(refusal.failure, node=node.id))
    except Exception as error:
        # To look at what a node returned may run code of its own, which may raise anything.
        failure = failure_of(error, code="bad_return", node=node.id)
        message = printable(f"node {node.id!r} returned what cannot be read: {failure.message}")
        return TaskOutcome(task=task, failure=replace(failure, message=message))


def _failed(node: RuntimeNode, task: Task, result: Raised, now: datetime, fraction: Callable[[], float]) -> TaskOutcome:
    code = "timeout" if result.timed_out else "node_error"
    failure = failure_of(result.error, code=code, node=node.id)
    if is_permanent(result.error) or task.attempt >= node.retry.max_attempts:
        return TaskOutcome(task=task, failure=failure)
    delay = timedelta(seconds=node.retry.delay(task.attempt, fraction()))
    return TaskOutcome(
        task=replace(task, state="retrying", attempt=task.attempt + 1, due_at=now + delay), failure=failure
    )


def _returned(
    program: RuntimeGraph, node: RuntimeNode, task: Task, value: Any, now: datetime, options: RuntimeOptions
) -> TaskOutcome:
    if isinstance(value, Interrupt):
        return _asked(program, node, task, value, now, options)
    if isinstance(value, Sleep):
        writes = _writes(program, node, value.writes, options, mapping_only=True)
        due_at = value.until if value.seconds is None else now + timedelta(seconds=value.seconds)
        return TaskOutcome(task=replace(task, state="sleeping", due_at=due_at, writes=writes))
    writes = _writes(program, node, value, options)
    return TaskOutcome(task=replace(task, state="finished", writes=writes))


def _asked(
    program: RuntimeGraph, node: RuntimeNode, task: Task, asked: Interrupt, now: datetime, options: RuntimeOptions
) -> TaskOutcome:
    field = program.fields.get(asked.field)
    if field is None:
        raise _Refused(
            "unknown_field", f"node {node.id!r} asks for field {asked.field!r}, which the graph does not have"
        )
    try:
        schema = {} if asked.schema is None else json_schema_of(asked.schema)
    except DocketError as error:
        raise _Refused("bad_interrupt", f"node {node.id!r} gives no usable answer schema: {error}") from error
    schema = _keep(schema, f"interrupt {asked.field!r} schema", options)
    payload = _keep(asked.payload, f"interrupt {asked.field!r} payload", options)
    interrupt = OpenInterrupt(
        id=question_id(task, task.asked + 1),
        node=node.id,
        step=task.step,
        field=asked.field,
        schema=schema,
        payload=payload,
        deadline=now + timedelta(seconds=asked.timeout) if asked.timeout is not None else asked.until,
        opened_at=now,
    )
    if interrupt.deadline is not None:
        try:
            interrupt = replace(interrupt, default=fitting(program, interrupt, asked.default, options))
        except InvalidInput as error:
            raise _Refused("bad_interrupt", f"node {node.id!r} gives a default that is no answer: {error}") from error
    return TaskOutcome(task=replace(task, state="interrupted", asked=task.asked + 1), interrupt=interrupt)


def _writes(
    program: RuntimeGraph, node: RuntimeNode, value: Any, options: RuntimeOptions, *, mapping_only: bool = False
) -> dict[str, JsonValue]:
    if value is None and (node.writes is None or mapping_only):
        return {}
    if node.writes is not None and not mapping_only:
        value = {node.writes: value}
    if not isinstance(value, Mapping):
        raise _Refused(
            "bad_return",
            f"node {node.id!r} must return a mapping of fields, Interrupt, Sleep or None, got {type(value).__name__}",
        )
    return {name: _write(program, node, name, write, options) for name, write in list(value.items())}


def _write(program: RuntimeGraph, node: RuntimeNode, name: Any, value: Any, options: RuntimeOptions) -> JsonValue:
    field = program.fields.get(name) if isinstance(name, str) else None
    if field is None:
        raise _Refused("unknown_field", f"node {node.id!r} writes field {name!r}, which the graph does not have")
    kept = field.reducer.normalise(_keep(value, f"$.{name}", options))
    problem = write_problem(field, kept)
    if problem is not None:
        raise _Refused("invalid_write", f"node {node.id!r} writes field {name!r}: {problem}", field=field.name)
    return kept


def _keep(value: Any, path: str, options: RuntimeOptions) -> JsonValue:
    try:
        return normalise(value, path, max_bytes=options.max_value_bytes)
    except ValueRefused as refusal:
        raise _Refused(refusal.code, str(refusal), path=refusal.path) from refusal
