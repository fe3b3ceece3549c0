"""What the pool around this code permits: signals or none, and how the process says that it is about to end.

Facts of the running process decide, not configuration: the same app runs on every pool, in scripts and in web servers.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable

from billiard.process import current_process
from celery.exceptions import WorkerShutdown, WorkerTerminate

from docket_celery.errors import is_of, part_of
from docket_celery.executors import NodeExecutor
from docket_celery.worker.stopping import is_being_terminated


def node_executor(monotonic: Callable[[], float]) -> NodeExecutor:
    """The executor for nodes in this process and in what it forks."""
    return NodeExecutor(
        monotonic,
        interruptible=not is_green(),
        is_farewell=is_farewell,
        offload=in_native_thread if _is_patched_by_gevent() else None,
    )


def is_green() -> bool:
    """Whether threads are greenlets here: a handler that raises would do so in whichever of them happens to run."""
    patcher = sys.modules.get("eventlet.patcher")
    return _is_patched_by_gevent() or (patcher is not None and bool(patcher.is_monkey_patched("thread")))


def is_pool_child() -> bool:
    """Whether this is a child of a prefork pool."""
    return bool(current_process().name != "MainProcess")


def is_farewell(error: BaseException) -> bool:
    """Whether an exception in the middle of a vehicle means that its process or greenlet is told to end.

    In a child whose terminate handler has run, that is every exception: clean-up code may have put its own in the place
    of the handler's `SystemExit`. On a solo pool the worker's signal handlers run inside the node, and whatever they
    raise is theirs. An interrupt comes from the keyboard only where Python's own handler is installed.
    """
    greenlet = sys.modules.get("greenlet")
    return (
        is_being_terminated()
        or is_of(error, WorkerShutdown, WorkerTerminate)
        or _comes_from_a_handler_of_the_worker(error)
        or (is_of(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler)
        or (greenlet is not None and is_of(error, greenlet.GreenletExit))
    )


def _comes_from_a_handler_of_the_worker(error: BaseException) -> bool:
    trace = part_of(error, "__traceback__")
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__") == "celery.apps.worker":
            return True
        trace = trace.tb_next
    return False


def in_native_thread(function: Callable[[], None]) -> None:
    """Runs `function` in a real thread while this greenlet waits: two event loops cannot share one."""
    from gevent.threadpool import ThreadPool

    ThreadPool(1).apply(function)


def _is_patched_by_gevent() -> bool:
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("threading"))
