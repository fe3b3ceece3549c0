"""Siblings run together; one that overruns its deadline is left behind, void and accounted for."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from support.attempts import AMPLE, LIMIT, SOON, attempt
from support.clock import eventually, within
from support.threadless import no_threads

from docket_celery.executors import FencedExecutor
from docket_celery.executors.threads import KeptThreads
from docket_celery.runtime.executor import AttemptResult, Raised, Returned, is_timeout

TESTS = Path(__file__).parents[2]


@pytest.fixture
def executor() -> FencedExecutor:
    return FencedExecutor(time.monotonic, width=3)


def eventually_none_left(executor: FencedExecutor) -> bool:
    return eventually(lambda: executor.overdue.count == 0)


def test_siblings_run_at_the_same_time(executor: FencedExecutor) -> None:
    together = threading.Barrier(3)
    results = executor.execute([attempt(lambda: together.wait(AMPLE), timeout=AMPLE) for _ in range(3)])
    assert sorted(result.value for result in results if isinstance(result, Returned)) == [0, 1, 2]


def test_siblings_that_are_done_at_once_share_a_thread() -> None:
    executor = FencedExecutor(time.monotonic, grace=AMPLE)
    results = executor.execute([attempt(threading.get_ident, timeout=AMPLE) for _ in range(8)])
    assert len({result.value for result in results if isinstance(result, Returned)}) == 1


def test_threads_serve_one_superstep_after_the_other() -> None:
    executor = FencedExecutor(lambda: 0.0, grace=0.0)  # Threads do not grow old here.
    together = threading.Barrier(3)

    def meets() -> threading.Thread:
        together.wait(AMPLE)
        return threading.current_thread()

    threads: list[threading.Thread] = []
    for _ in range(20):
        results = executor.execute([attempt(meets, timeout=AMPLE) for _ in range(3)])
        threads += [result.value for result in results if isinstance(result, Returned)]
        eventually(lambda: len(executor._threads._idle) == 3)
    assert len(threads) == 60
    assert len(set(threads)) == 3


def test_a_thread_in_which_a_node_failed_serves_no_further_superstep() -> None:
    """What broke in its locals, such as a connection of Django's, would fail those nodes too."""
    executor = FencedExecutor(lambda: 0.0)
    executor._threads = KeptThreads(lambda: 0.0, kept=1000.0)
    threads: list[threading.Thread] = []

    def fails() -> None:
        threads.append(threading.current_thread())
        raise ValueError

    executor.execute([attempt(fails, timeout=AMPLE)])
    eventually(lambda: not threads[0].is_alive() or executor._threads._idle)
    (result,) = executor.execute([attempt(threading.current_thread, timeout=AMPLE)])
    assert isinstance(result, Returned)
    assert result.value is not threads[0]


def test_siblings_of_one_that_hangs_do_not_wait_for_its_deadline() -> None:
    executor = FencedExecutor(time.monotonic)
    others = threading.Semaphore(0)

    def waits_for_the_others() -> bool:
        return all(others.acquire(timeout=AMPLE) for _ in range(7))

    results = executor.execute(
        [attempt(waits_for_the_others, timeout=None), *[attempt(others.release, timeout=None) for _ in range(7)]]
    )
    assert results[0] == Returned(value=True)


def test_nothing_begins_any_more_once_the_caller_is_told_to_end() -> None:
    release = threading.Event()
    asked: list[float | None] = []

    def is_asked(timeout: float | None) -> bool:
        asked.append(timeout)
        return True

    class Told(BaseException): ...

    def clock() -> float:
        if asked and threading.current_thread() is threading.main_thread():
            raise Told
        return time.monotonic()

    executor = FencedExecutor(clock, width=1)
    with pytest.raises(Told):
        executor.execute([attempt(release.wait), attempt(release.wait)], is_asked)
    assert executor.overdue.count == 1
    release.set()
    assert eventually_none_left(executor)
    assert len(asked) == 1


def test_no_more_siblings_than_allowed_run_at_the_same_time(executor: FencedExecutor) -> None:
    lock, running, most = threading.Lock(), [0], [0]

    def counts() -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        threading.Event().wait(0.01)
        with lock:
            running[0] -= 1

    results = executor.execute([attempt(counts, timeout=AMPLE) for _ in range(20)])
    assert all(isinstance(result, Returned) for result in results)
    assert most[0] <= 3


def test_results_come_in_the_order_of_the_attempts_whoever_ends_first(executor: FencedExecutor) -> None:
    first = threading.Event()
    results = executor.execute(
        [attempt(lambda: first.wait(AMPLE) and "a", timeout=AMPLE), attempt(lambda: first.set() or "b", timeout=AMPLE)]
    )
    assert results == [Returned(value="a"), Returned(value="b")]


def test_an_overdue_sibling_is_void_and_costs_the_others_nothing(executor: FencedExecutor) -> None:
    release = threading.Event()
    with within(SOON):
        results = executor.execute([attempt(release.wait), attempt(lambda: "done", timeout=AMPLE)])
    assert is_timeout(results[0])
    assert results[1] == Returned(value="done")
    assert executor.overdue.count == 1
    release.set()
    assert eventually_none_left(executor)


def test_an_attempt_alone_is_left_behind_at_its_deadline_too(executor: FencedExecutor) -> None:
    release = threading.Event()
    (result,) = executor.execute([attempt(release.wait)])
    assert is_timeout(result)
    assert executor.overdue.count == 1
    release.set()
    assert eventually_none_left(executor)


def test_overdue_siblings_make_room_for_those_that_wait(executor: FencedExecutor) -> None:
    release = threading.Event()
    results = executor.execute([*[attempt(release.wait) for _ in range(3)], attempt(lambda: "late", timeout=AMPLE)])
    assert [is_timeout(result) for result in results] == [True, True, True, False]
    release.set()
    assert eventually_none_left(executor)


def test_the_wait_for_a_free_thread_is_not_the_nodes_time() -> None:
    now = [0.0]

    def takes_its_time() -> None:
        now[0] += LIMIT * 0.6

    executor = FencedExecutor(lambda: now[0], width=1)
    results = executor.execute([attempt(takes_its_time) for _ in range(4)])
    assert [type(result) for result in results] == [Returned] * 4
    assert now[0] > 2 * LIMIT


def test_whatever_is_raised_in_a_helper_is_the_nodes_own(executor: FencedExecutor) -> None:
    def interrupts() -> None:
        raise KeyboardInterrupt

    nodes = (lambda: sys.exit(0), interrupts, lambda: 1 / 0)
    results = executor.execute([attempt(node, timeout=AMPLE) for node in nodes])
    kinds = [type(result.error) for result in results if isinstance(result, Raised)]
    assert kinds == [SystemExit, KeyboardInterrupt, ZeroDivisionError]


def test_a_helper_sees_the_callers_context(executor: FencedExecutor) -> None:
    name = contextvars.ContextVar("name", default="none")
    name.set("caller")
    assert executor.execute([attempt(name.get, timeout=AMPLE)]) == [Returned(value="caller")]


def test_what_an_attempt_sets_in_its_context_reaches_nobody_else() -> None:
    executor = FencedExecutor(time.monotonic, grace=AMPLE)
    name = contextvars.ContextVar("name", default="none")
    name.set("caller")

    def renames() -> str:
        before = name.get()
        name.set("node")
        return before

    both = [attempt(renames, timeout=AMPLE) for _ in range(2)]
    assert executor.execute(both) == [Returned(value="caller")] * 2
    name.set("next")
    assert executor.execute(both) == [Returned(value="next")] * 2
    assert name.get() == "next"


def test_coroutines_share_one_loop(executor: FencedExecutor) -> None:
    loops: list[asyncio.AbstractEventLoop] = []
    met = [asyncio.Event(), asyncio.Event()]

    async def meets(mine: int, other: int) -> str:
        loops.append(asyncio.get_running_loop())
        met[mine].set()
        await met[other].wait()
        return "met"

    results = executor.execute(
        [attempt(meets, timeout=AMPLE, mine=0, other=1), attempt(meets, timeout=AMPLE, mine=1, other=0)]
    )
    assert results == [Returned(value="met"), Returned(value="met")]
    assert loops[0] is loops[1]


def test_an_overdue_coroutine_is_cancelled_and_its_loop_ends(executor: FencedExecutor) -> None:
    cancelled = threading.Event()

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def ends() -> str:
        return "done"

    results = executor.execute([attempt(waits), attempt(ends, timeout=AMPLE)])
    assert is_timeout(results[0])
    assert results[1] == Returned(value="done")
    assert cancelled.wait(AMPLE)
    assert eventually_none_left(executor)


def test_a_coroutine_that_blocks_its_loop_is_left_behind_with_its_siblings(executor: FencedExecutor) -> None:
    release = threading.Event()

    async def blocks() -> None:
        release.wait()

    async def ends() -> str:
        await asyncio.sleep(0)
        return "done"

    results = executor.execute([attempt(blocks), attempt(ends), attempt(lambda: "thread", timeout=AMPLE)])
    assert is_timeout(results[0])
    assert is_timeout(results[1])
    assert results[2] == Returned(value="thread")
    assert executor.overdue.count == 1
    release.set()
    assert eventually_none_left(executor)


def test_a_coroutine_that_swallows_its_cancellation_is_a_timeout(executor: FencedExecutor) -> None:
    async def swallows() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "swallowed"
        return ""

    assert is_timeout(executor.execute([attempt(swallows)])[0])
    assert eventually_none_left(executor)


def test_what_a_coroutine_raises_is_its_own(executor: FencedExecutor) -> None:
    async def exits() -> None:
        sys.exit(1)

    async def cancels_itself() -> None:
        raise asyncio.CancelledError

    results = executor.execute([attempt(exits, timeout=AMPLE), attempt(cancels_itself, timeout=AMPLE)])
    assert [type(result.error) for result in results if isinstance(result, Raised)] == [
        SystemExit,
        asyncio.CancelledError,
    ]


def test_where_no_thread_can_be_had_siblings_run_one_after_the_other_in_the_calling_one(
    executor: FencedExecutor,
) -> None:
    async def coroutine() -> int:
        return threading.get_ident()

    here = threading.get_ident()
    with no_threads():
        results = executor.execute(
            [
                attempt(threading.get_ident, timeout=AMPLE),
                attempt(coroutine, timeout=AMPLE),
                attempt(lambda: time.sleep(2 * LIMIT)),
                attempt(coroutine, timeout=AMPLE),
            ]
        )
    assert [results[index] for index in (0, 1, 3)] == [Returned(value=here)] * 3
    assert is_timeout(results[2])


def test_a_helper_that_cannot_come_leaves_its_share_to_the_others(executor: FencedExecutor) -> None:
    alone, began, go_on = threading.Event(), threading.Event(), threading.Event()

    def first() -> str:
        began.set()
        go_on.wait()
        return "first"

    results: list[AttemptResult] = []
    siblings = [attempt(first, timeout=AMPLE), *(attempt(lambda: "later", timeout=AMPLE) for _ in range(3))]
    assert executor.execute([attempt(lambda: None), attempt(lambda: None)])
    eventually(lambda: executor._threads._idle)
    caller = threading.Thread(target=lambda: alone.wait(AMPLE) and results.extend(executor.execute(siblings)))
    caller.start()
    with no_threads():
        alone.set()
        assert began.wait(AMPLE)
        go_on.set()
        caller.join(AMPLE)
    assert results == [Returned(value="first"), *[Returned(value="later")] * 3]


async def stops_the_loop() -> None:
    asyncio.get_running_loop().stop()


async def cancels_everything() -> None:
    for task in asyncio.all_tasks():
        task.cancel()


async def leaves_an_exit_behind() -> None:
    asyncio.get_running_loop().call_soon(sys.exit)
    await asyncio.Event().wait()


class Farewell(Exception):
    """What clean-up code of a node may put in the place of an exit."""


def is_farewell(error: BaseException) -> bool:
    return isinstance(error, SystemExit | Farewell)


async def exits_at_once() -> None:
    sys.exit()


async def cleans_up() -> None:
    raise Farewell


@pytest.mark.parametrize("ends", [sys.exit, exits_at_once, leaves_an_exit_behind, cleans_up])
def test_where_no_thread_can_be_had_a_farewell_passes_through_siblings_too(ends: Any) -> None:
    """As in a pool process that is told to end: it is nobody's failure, and nothing of the superstep is committed."""

    async def coroutine() -> None:
        await asyncio.sleep(0)

    executor = FencedExecutor(time.monotonic, is_farewell=is_farewell)
    with no_threads(), pytest.raises((SystemExit, Farewell)):
        executor.execute([attempt(coroutine, timeout=AMPLE), attempt(lambda: None), attempt(ends, timeout=AMPLE)])


@pytest.mark.parametrize("ends", [stops_the_loop, cancels_everything, leaves_an_exit_behind])
def test_siblings_whose_loop_is_ended_do_not_wait_for_their_deadlines(executor: FencedExecutor, ends: Any) -> None:
    async def at_once() -> str:
        return "done"

    async def waits() -> None:
        await asyncio.Event().wait()

    results = executor.execute(
        [attempt(at_once, timeout=AMPLE), attempt(ends, timeout=AMPLE), attempt(waits, timeout=AMPLE)]
    )
    assert results[0] == Returned(value="done")
    assert not is_timeout(results[1])
    assert isinstance(results[2], Raised)
    assert not is_timeout(results[2])
    assert eventually_none_left(executor)


GREEN = """
from gevent import monkey; monkey.patch_all()
import asyncio, signal, threading, time
import gevent
from support.attempts import AMPLE, attempt
from docket_celery.runtime.executor import Returned, is_timeout
from docket_celery.worker.pools import is_green, node_executor

assert is_green()
executor = node_executor(time.monotonic)
handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}

async def coroutine(text):
    await asyncio.sleep(0.05)
    return text

async def hangs():
    await asyncio.Event().wait()

def vehicle(text):
    return executor.execute([attempt(coroutine, timeout=AMPLE, text=name) for name in (text, "s")])

release = threading.Event()
overdue = gevent.spawn(executor.execute, [attempt(release.wait)])
hanging = gevent.spawn(executor.execute, [attempt(hangs), attempt(coroutine, timeout=AMPLE, text="beside")])
vehicles = [gevent.spawn(vehicle, str(number)) for number in range(5)]
gevent.joinall([overdue, hanging, *vehicles], timeout=AMPLE, raise_error=True)
assert is_timeout(overdue.value[0])
with gevent.Timeout(AMPLE):
    while executor.overdue.count != 1:
        gevent.sleep(0.01)
assert is_timeout(hanging.value[0]) and hanging.value[1] == Returned(value="beside"), hanging.value
assert [v.value for v in vehicles] == [[Returned(value=str(n)), Returned(value="s")] for n in range(5)]
assert handlers == {number: signal.getsignal(number) for number in signal.valid_signals()}

def greenlets():
    return {r.value for r in executor.execute([attempt(gevent.getcurrent, timeout=AMPLE) for _ in range(8)])}

first = greenlets()
assert len(first) == 1 and greenlets() == first
together = threading.Barrier(3)
assert [type(r) for r in executor.execute([attempt(together.wait, timeout=AMPLE) for _ in range(3)])] == [Returned] * 3
assert executor.overdue.count == 1
release.set()
with gevent.Timeout(AMPLE):
    while executor.overdue.count:
        gevent.sleep(0.01)
print("sound")
"""


def test_among_greenlets_attempts_are_fenced_off_in_kept_greenlets_and_no_signal_is_installed() -> None:
    green = subprocess.run([sys.executable, "-c", GREEN], cwd=TESTS, capture_output=True, text=True, timeout=AMPLE)
    assert green.stdout == "sound\n", green.stderr
