"""A node that forks can come back in two processes. The copy ends where the node ends: it holds no claim, and what it
did as a vehicle would be done twice.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable

from docket_celery.errors import is_of, part_of
from docket_celery.runtime.executor import AttemptResult, MayBegin, Raised, Started, call

Passes = Callable[[BaseException], bool]
"""Whether an exception raised inside a node is none of the node's own and goes on to whoever called the executor."""


def call_once(attempt: Started, may_begin: MayBegin, *, passes: Passes) -> AttemptResult:
    """What `call` gives, in the process that has called it and in no other."""
    process = os.getpid()
    try:
        result = call(attempt, may_begin, passes=passes)
    except BaseException as error:
        end_copy_of(process, error)
        raise
    end_copy_of(process, result.error if isinstance(result, Raised) else None)
    return result


def end_copy_of(process: int, error: BaseException | None) -> None:
    """Does nothing in `process` itself. Elsewhere it ends this one, at once and with the status that a script ends with
    on this error: 0 without one.
    """
    if os.getpid() == process:
        return
    status = 0 if error is None else 1
    try:
        if error is not None and is_of(error, SystemExit):
            code = part_of(error, "code", SystemExit)
            status = code if isinstance(code, int) else int(code is not None)
        elif error is not None:
            traceback.print_exception(error)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status & 0xFF)  # Whatever was raised since.
