"""Open questions of a run: which answer fits, what an answer does, and whose deadline has passed.

Pure decisions over committed state. An answer counts once: from outside, or by the question's own default.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from msgspec.structs import replace

from docket_celery.errors import InvalidInput
from docket_celery.graph.schemas import Schema
from docket_celery.program import RuntimeGraph
from docket_celery.run.document import JsonValue, OpenInterrupt, Run, RunStatus, Task
from docket_celery.run.values import decode, encode, normalise
from docket_celery.runtime.acceptance import accept
from docket_celery.runtime.options import RuntimeOptions

MOST_ANSWERED: Final = 100
"""How many answered interrupts a run remembers, so that a repeated answer is recognised. Those of the open superstep
are known from its tasks.
"""


def fitting(program: RuntimeGraph, interrupt: OpenInterrupt, answer: Any, options: RuntimeOptions) -> JsonValue:
    """The answer in its committed form; `InvalidInput` when the field's or the interrupt's schema does not take it."""
    kept = accept(program, interrupt.field, answer, options)
    # The schema describes the answer itself, before the field's reducer makes an item a list of one.
    given = normalise(answer, f"$.{interrupt.field}", max_bytes=options.max_value_bytes)
    problem = _compiled(encode(interrupt.schema)).problem(given) if interrupt.schema else None
    if problem is not None:
        raise InvalidInput(f"interrupt {interrupt.id!r} does not take this answer: {problem}")
    return kept


@lru_cache(maxsize=256)
def _compiled(schema: str) -> Schema:
    """A question's schema, from its text. The nodes of a graph ask the same questions again and again."""
    return Schema(decode(schema))


def answered(run: Run, answers: Iterable[tuple[OpenInterrupt, JsonValue]]) -> Run:
    """The running run with these of its open interrupts answered, and the nodes that asked ready to go on."""
    given = list(answers)
    by_node = {interrupt.node: (interrupt.field, value) for interrupt, value in given}
    closed = {interrupt.id for interrupt, _ in given}
    return replace(
        run,
        status=RunStatus.RUNNING,
        tasks=tuple(_given(task, *by_node[task.node]) if task.node in by_node else task for task in run.tasks),
        interrupts=tuple(open_ for open_ in run.interrupts if open_.id not in closed),
        answered=(*run.answered, *sorted(closed))[-MOST_ANSWERED:],
    )


def was_answered(run: Run, interrupt_id: str) -> bool:
    """Whether a question that is not open was asked: in the open superstep, or as one of the last `MOST_ANSWERED`."""
    return interrupt_id in run.answered or any(
        interrupt_id == question_id(task, number) for task in run.tasks for number in range(1, task.asked + 1)
    )


def question_id(task: Task, number: int) -> str:
    """The id of the `number`-th question, from 1, of an activation."""
    return f"{task.task_id}.{number}"


def overdue(run: Run, now: datetime) -> tuple[OpenInterrupt, ...]:
    """The open interrupts whose deadline has come, in order of id."""
    late = [open_ for open_ in run.interrupts if open_.deadline is not None and open_.deadline <= now]
    return tuple(sorted(late, key=lambda open_: open_.id))


def _given(task: Task, field: str, answer: JsonValue) -> Task:
    return replace(task, state="ready", answers={**task.answers, field: answer})
