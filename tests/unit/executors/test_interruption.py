"""A node that runs alone in the main thread is ended at its deadline, whatever it does; nothing else ever is."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from support.attempts import AMPLE, LIMIT, SOON, attempt
from support.clock import eventually, within
from support.threadless import no_threads

from docket_celery.executors import NodeExecutor, interruption
from docket_celery.executors.interruption import LOOK_EVERY, DeadlineReached
from docket_celery.holds import held
from docket_celery.runtime.executor import (
    Attempt,
    AttemptResult,
    InlineExecutor,
    IsVoid,
    NotBegun,
    Raised,
    Returned,
    is_timeout,
    never,
)

FOREVER = 3_600.0


pytestmark = pytest.mark.usefixtures("signals_given_back")


@pytest.fixture
def executor() -> NodeExecutor:
    return NodeExecutor(time.monotonic)


def run(executor: NodeExecutor, one: Attempt, is_void: IsVoid = never) -> AttemptResult:
    with within(SOON):
        (result,) = executor.execute([one], is_void=is_void)
    return result


def is_watching(executor: NodeExecutor) -> bool:
    """Whether the watchdog waits for its next look."""
    interrupter = executor._interrupter
    assert interrupter is not None
    with interrupter._changed:  # Not free while it looks.
        return interrupter._watching_until is not None


def wake_watchdog(executor: NodeExecutor) -> None:
    interrupter = executor._interrupter
    assert interrupter is not None
    with interrupter._changed:
        interrupter._changed.notify()


def test_what_a_node_sets_in_its_context_reaches_no_later_one_and_not_the_caller(executor: NodeExecutor) -> None:
    name = contextvars.ContextVar("name", default="none")
    name.set("caller")

    def renames() -> str:
        before = name.get()
        name.set("node")
        return before

    async def renames_too() -> str:
        return renames()

    for node in (renames, renames, renames_too, renames_too):
        assert run(executor, attempt(node)) == Returned(value="caller")
        assert InlineExecutor(time.monotonic).execute([attempt(node)]) == [Returned(value="caller")]
    assert run(executor, attempt(renames, timeout=None)) == Returned(value="caller")
    assert name.get() == "caller"


def sleeps() -> None:
    time.sleep(FOREVER)


def waits_for_a_lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def waits_for_an_event() -> None:
    threading.Event().wait()


def waits_for_a_thread() -> None:
    thread = threading.Thread(target=threading.Event().wait, daemon=True)
    thread.start()
    thread.join()


def waits_for_a_process() -> None:
    subprocess.run([sys.executable, "-c", "import signal; signal.pause()"], check=True)


def reads_a_pipe() -> None:
    reader, _writer = os.pipe()
    os.read(reader, 1)


def loops() -> None:
    for _ in itertools.count():
        pass


async def awaits() -> None:
    await asyncio.Event().wait()


async def blocks_its_loop() -> None:
    time.sleep(FOREVER)


def works_in_finally() -> None:
    try:
        time.sleep(FOREVER)
    finally:
        time.sleep(FOREVER)


def catches_every_exception() -> None:
    while True:
        try:
            time.sleep(FOREVER)
        except Exception:
            continue


def catches_everything_once() -> None:
    try:
        time.sleep(FOREVER)
    except:  # noqa: E722
        time.sleep(FOREVER)


def catches_everything_for_ever() -> None:
    while True:
        try:
            time.sleep(FOREVER)
        except:  # noqa: E722
            continue


class Stubborn:
    def __del__(self) -> None:
        time.sleep(FOREVER)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def lingers_in_a_finaliser() -> None:
    del_me = Stubborn()
    del del_me
    time.sleep(FOREVER)


@pytest.mark.parametrize(
    "node",
    [
        sleeps,
        waits_for_a_lock,
        waits_for_an_event,
        waits_for_a_thread,
        waits_for_a_process,
        reads_a_pipe,
        loops,
        awaits,
        blocks_its_loop,
        works_in_finally,
        catches_every_exception,
        catches_everything_once,
        catches_everything_for_ever,
    ],
)
def test_a_node_is_ended_at_its_deadline(executor: NodeExecutor, node: Callable[[], Any]) -> None:
    assert is_timeout(run(executor, attempt(node)))
    assert executor.overdue.count == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_finaliser_that_eats_the_interruption_is_interrupted_again(executor: NodeExecutor) -> None:
    assert is_timeout(run(executor, attempt(lingers_in_a_finaliser)))


def test_a_statement_is_cancelled_and_its_connection_stays_usable(executor: NodeExecutor, postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        assert is_timeout(run(executor, attempt(lambda: connection.execute("SELECT pg_sleep(3600)"))))
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_what_a_node_returns_after_its_deadline_is_void(executor: NodeExecutor) -> None:
    def returns_late() -> dict[str, str]:
        try:
            time.sleep(FOREVER)
        except BaseException:
            return {"written": "late"}
        return {}

    assert is_timeout(run(executor, attempt(returns_late)))


def test_what_a_node_raises_after_its_deadline_is_a_timeout(executor: NodeExecutor) -> None:
    def raises_late() -> None:
        try:
            time.sleep(FOREVER)
        except BaseException:
            raise ValueError("something else") from None

    assert is_timeout(run(executor, attempt(raises_late)))


def test_a_node_that_ends_in_time_keeps_its_result_and_is_left_alone_afterwards() -> None:
    now = [0.0]
    looks: list[float] = []

    def monotonic() -> float:
        if threading.current_thread() is not threading.main_thread():
            looks.append(now[0])
        return now[0]

    executor = NodeExecutor(monotonic)
    assert run(executor, attempt(lambda: 7)) == Returned(value=7)
    now[0] = LIMIT * 2

    def has_looked() -> bool:
        wake_watchdog(executor)
        return LIMIT * 2 in looks

    eventually(has_looked)
    assert run(executor, attempt(lambda: 8, timeout=None)) == Returned(value=8)


@pytest.mark.parametrize("node", [sleeps, waits_for_a_lock, loops, awaits])
def test_a_node_that_has_become_void_is_ended_long_before_its_deadline(
    executor: NodeExecutor, node: Callable[[], Any]
) -> None:
    void = threading.Event()
    threading.Timer(LIMIT, void.set).start()
    assert run(executor, attempt(node, timeout=FOREVER), void.is_set) == NotBegun()


def test_a_node_that_becomes_void_while_docket_works_for_it_is_ended_afterwards(executor: NodeExecutor) -> None:
    void = threading.Event()
    finished: list[bool] = []

    def commits() -> None:
        with held():
            void.set()
            time.sleep(LOOK_EVERY + LIMIT)
            finished.append(True)
        sleeps()

    (result,) = executor.execute([attempt(commits, timeout=FOREVER)], is_void=void.is_set)
    assert (result, finished) == (NotBegun(), [True])


def test_what_one_node_left_void_does_not_touch_the_next(executor: NodeExecutor) -> None:
    assert run(executor, attempt(sleeps, timeout=FOREVER), lambda: True) == NotBegun()
    assert run(executor, attempt(lambda: time.sleep(LIMIT) or 7, timeout=FOREVER)) == Returned(value=7)


def test_a_later_deadline_does_not_outlast_an_earlier_one(executor: NodeExecutor) -> None:
    assert run(executor, attempt(lambda: 1, timeout=FOREVER)) == Returned(value=1)
    assert is_timeout(run(executor, attempt(waits_for_an_event)))
    assert run(executor, attempt(lambda: 2, timeout=FOREVER)) == Returned(value=2)
    assert is_timeout(run(executor, attempt(waits_for_an_event)))


def test_a_busy_process_does_not_wake_its_watchdog_for_each_short_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interruption, "LOOK_EVERY", FOREVER)
    looks: list[float] = []

    def monotonic() -> float:
        now = time.monotonic()
        if threading.current_thread() is not threading.main_thread():
            looks.append(now)
        return now

    executor = NodeExecutor(monotonic)
    run(executor, attempt(lambda: 0, timeout=FOREVER))
    eventually(lambda: is_watching(executor))
    before = len(looks)
    for _ in range(200):
        executor.execute([attempt(lambda: 0, timeout=FOREVER)])
        threading.Event().wait(0.001)  # As between two attempts, where a commit lets other threads run.
    assert len(looks) == before


def test_a_held_stretch_is_finished_before_the_interruption_lands(executor: NodeExecutor) -> None:
    finished: list[float] = []

    def commits() -> None:
        began = time.monotonic()
        with held():
            while time.monotonic() - began < LIMIT * 2:
                threading.Event().wait(0.01)
            finished.append(time.monotonic() - began)
        time.sleep(FOREVER)

    assert is_timeout(run(executor, attempt(commits)))
    assert finished
    assert finished[0] >= LIMIT * 2


def test_deadlines_about_the_very_end_never_land_outside_the_node(executor: NodeExecutor) -> None:
    """Results race their deadlines here, from a whole limit before them to a whole limit after them: each is either
    kept or a timeout, and nothing escapes from `execute`.
    """
    limit, count = 0.001, 400
    seen = {Returned: 0, Raised: 0}
    for number in range(count):

        def spins(long: float = limit * 2 * number / count) -> None:
            until = time.monotonic() + long
            while time.monotonic() < until:
                pass

        (result,) = executor.execute([attempt(spins, timeout=limit)])
        assert isinstance(result, Returned) or is_timeout(result)
        seen[type(result)] += 1
    assert seen[Returned] > 0
    assert seen[Raised] > 0


def test_an_exit_in_a_node_is_the_failure_of_the_node(executor: NodeExecutor) -> None:
    result = run(executor, attempt(lambda: sys.exit(3), timeout=AMPLE))
    assert isinstance(result, Raised)
    assert isinstance(result.error, SystemExit)
    assert not result.timed_out


def test_an_exception_that_ends_the_process_passes_through_a_node() -> None:
    executor = NodeExecutor(time.monotonic, is_farewell=lambda error: isinstance(error, SystemExit))
    with pytest.raises(SystemExit):
        executor.execute([attempt(lambda: sys.exit(3), timeout=AMPLE)])


def test_an_error_of_clean_up_code_does_not_hide_that_the_process_is_ended() -> None:
    def fails_to_clean_up() -> None:
        try:
            sys.exit(3)
        finally:
            raise ValueError("clean-up failed")

    executor = NodeExecutor(time.monotonic, is_farewell=lambda _: True)
    with pytest.raises(SystemExit):
        executor.execute([attempt(fails_to_clean_up, timeout=AMPLE)])


def test_an_attempt_that_may_not_begin_is_not_called(executor: NodeExecutor) -> None:
    called: list[int] = []
    one = attempt(lambda: called.append(1))
    (result,) = executor.execute([one], lambda _: False)
    assert result == NotBegun()
    assert called == []


def test_a_node_that_drains_another_run_has_it_fenced_off(executor: NodeExecutor) -> None:
    inner: list[AttemptResult] = []
    outer = attempt(lambda: inner.extend(executor.execute([attempt(waits_for_an_event)])), timeout=FOREVER)
    assert isinstance(run(executor, outer), Returned)
    assert is_timeout(inner[0])
    assert executor.overdue.count == 1


def test_the_alarm_of_the_user_stays_the_users_own() -> None:
    rung: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: rung.append(number))
    executor = NodeExecutor(lambda: LIMIT if rung else 0.0)  # Its time is up when the alarm has rung.
    try:

        def sets_an_alarm() -> None:
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            time.sleep(FOREVER)

        assert is_timeout(run(executor, attempt(sets_an_alarm)))
        assert rung == [signal.SIGALRM]
    finally:
        signal.signal(signal.SIGALRM, before)


def takes_every_signal(disposition: signal.Handlers) -> None:
    for number in range(signal.SIGRTMIN, signal.SIGRTMAX + 1):
        signal.signal(number, disposition)


def blocks_every_signal() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, range(signal.SIGRTMIN, signal.SIGRTMAX + 1))


@pytest.mark.parametrize(
    "disarm",
    [
        lambda: takes_every_signal(signal.SIG_IGN),
        lambda: takes_every_signal(signal.SIG_DFL),
        blocks_every_signal,
    ],
    ids=["ignored", "default", "blocked"],
)
def test_what_a_node_does_to_the_signals_disarms_no_later_deadline(executor: NodeExecutor, disarm: Any) -> None:
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        assert run(executor, attempt(disarm, timeout=AMPLE)) == Returned(value=None)
        assert is_timeout(run(executor, attempt(sleeps)))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def test_a_forked_child_has_deadlines_of_its_own(executor: NodeExecutor) -> None:
    assert run(executor, attempt(lambda: 1, timeout=AMPLE)) == Returned(value=1)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if is_timeout(executor.execute([attempt(waits_for_an_event)])[0]) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_outside_the_main_thread_a_node_is_fenced_off(executor: NodeExecutor) -> None:
    results: list[AttemptResult] = []
    thread = threading.Thread(target=lambda: results.extend(executor.execute([attempt(waits_for_an_event)])))
    thread.start()
    thread.join(AMPLE)
    assert is_timeout(results[0])
    assert executor.overdue.count == 1


def test_inside_a_running_loop_a_coroutine_is_fenced_off(executor: NodeExecutor) -> None:
    """As where somebody drains in a notebook, or in an async web application."""

    async def one() -> int:
        return 1

    def plainly() -> int:
        return 1

    async def caller() -> list[AttemptResult]:
        limits = {one: AMPLE, plainly: AMPLE, awaits: LIMIT}
        return [run(executor, attempt(node, timeout=limit)) for node, limit in limits.items()]

    done, plain, late = asyncio.run(caller())
    assert (done, plain) == (Returned(value=1), Returned(value=1))
    assert is_timeout(late)


def test_without_a_thread_for_the_watchdog_a_node_is_not_left_without_a_deadline_for_ever(
    executor: NodeExecutor,
) -> None:
    with within(SOON), no_threads():
        assert executor.execute([attempt(lambda: 1, timeout=AMPLE)]) == [Returned(value=1)]
        assert is_timeout(executor.execute([attempt(lambda: time.sleep(2 * LIMIT))])[0])
    assert is_timeout(run(executor, attempt(sleeps)))


def test_the_interruption_is_no_exception_that_broad_handlers_catch() -> None:
    assert issubclass(DeadlineReached, KeyboardInterrupt)
    assert not issubclass(DeadlineReached, Exception)
