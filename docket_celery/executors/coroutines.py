"""`async def` siblings: all of them on one event loop, in the calling thread, each cancelled at its deadline.

A coroutine that swallows its cancellation keeps the loop running after its result has been given away; one that blocks
the loop keeps its siblings waiting. Both are left to whoever waits for the results.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence

from docket_celery.executors.forks import Passes, end_copy_of
from docket_celery.runtime.executor import (
    AttemptResult,
    MayBegin,
    NotBegun,
    Raised,
    Returned,
    Started,
    arguments_of,
    in_time,
    timed_out,
)

Report = Callable[[int, AttemptResult], None]
"""Takes the result of the attempt with that index."""


def run_together(
    attempts: Sequence[tuple[int, Started]],
    may_begin: MayBegin,
    report: Report,
    monotonic: Callable[[], float],
    *,
    passes: Passes,
) -> None:
    """Carries out started attempts and reports each result as it comes. Returns when none of them runs.

    A node that ends the loop, or cancels whatever runs in it, has ended its siblings too: that is what they raised. A
    result that was reported before stands. What `passes` lets through is raised.
    """
    try:
        asyncio.run(_together(attempts, may_begin, report, monotonic, passes))
    except BaseException as error:
        if passes(error):
            raise
        for index, _ in attempts:
            report(index, Raised(error=error))


async def _together(
    attempts: Sequence[tuple[int, Started]],
    may_begin: MayBegin,
    report: Report,
    monotonic: Callable[[], float],
    passes: Passes,
) -> None:
    await asyncio.gather(*(_one(index, attempt, may_begin, report, monotonic, passes) for index, attempt in attempts))


async def _one(
    index: int, attempt: Started, may_begin: MayBegin, report: Report, monotonic: Callable[[], float], passes: Passes
) -> None:
    deadline = attempt.deadline
    if not may_begin(attempt.timeout):
        report(index, NotBegun())
        return

    async def carried_out() -> None:
        # Reported by the node's own task: the loop may be ended before another one gets to it.
        report(index, in_time(attempt, await _call(attempt, passes), monotonic))

    task = asyncio.ensure_future(carried_out())
    await asyncio.wait({task}, timeout=None if deadline is None else max(deadline - monotonic(), 0.0))
    if task.done():
        task.result()  # Raises what was let through.
    else:
        task.cancel()
        report(index, timed_out(attempt))


async def _call(attempt: Started, passes: Passes) -> AttemptResult:
    """The coroutine's result; what it raises is its own, a cancellation that nobody asked for included."""
    assert attempt.node.call is not None, f"node {attempt.node.id!r} was compiled without its code"
    process = os.getpid()
    result: AttemptResult
    try:
        result = Returned(value=await attempt.node.call(**arguments_of(attempt)))
    except BaseException as error:
        if passes(error):
            raise
        result = Raised(error=error)
    end_copy_of(process, result.error if isinstance(result, Raised) else None)
    return result
