"""`async def` siblings: all of them on one event loop, in the calling thread, each cancelled at its deadline.

A coroutine that swallows its cancellation keeps the loop running after its result has been given away; one that blocks
the loop keeps its siblings waiting. Both are left to whoever waits for the results.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence

from docket_celery.executors.forks import end_copy_of
from docket_celery.runtime.executor import (
    AttemptResult,
    MayBegin,
    NotBegun,
    Raised,
    Returned,
    Started,
    arguments_of,
    timed_out,
)

Report = Callable[[int, AttemptResult], None]
"""Takes the result of the attempt with that index."""


def run_together(
    attempts: Sequence[tuple[int, Started]], may_begin: MayBegin, report: Report, monotonic: Callable[[], float]
) -> None:
    """Carries out started attempts and reports each result as it comes. Returns when none of them runs."""
    asyncio.run(_together(attempts, may_begin, report, monotonic))


async def _together(
    attempts: Sequence[tuple[int, Started]], may_begin: MayBegin, report: Report, monotonic: Callable[[], float]
) -> None:
    await asyncio.gather(*(_one(index, attempt, may_begin, report, monotonic) for index, attempt in attempts))


async def _one(
    index: int, attempt: Started, may_begin: MayBegin, report: Report, monotonic: Callable[[], float]
) -> None:
    deadline = attempt.deadline
    if not may_begin(attempt.timeout):
        report(index, NotBegun())
        return
    task = asyncio.ensure_future(_call(attempt))
    await asyncio.wait({task}, timeout=None if deadline is None else max(deadline - monotonic(), 0.0))
    if task.done() and (deadline is None or monotonic() < deadline):
        report(index, task.result())
    else:
        task.cancel()
        report(index, timed_out(attempt))


async def _call(attempt: Started) -> AttemptResult:
    """The coroutine's result; what it raises is its own, a cancellation that nobody asked for included."""
    assert attempt.node.call is not None, f"node {attempt.node.id!r} was compiled without its code"
    process = os.getpid()
    result: AttemptResult
    try:
        result = Returned(value=await attempt.node.call(**arguments_of(attempt)))
    except BaseException as error:
        result = Raised(error=error)
    end_copy_of(process, result.error if isinstance(result, Raised) else None)
    return result
