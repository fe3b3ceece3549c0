"""Whether anything is put in order between two of our tasks: by Celery's fixups, a library, or the app itself.

Where nothing is, a task of its own helps a run no more than the task of the run before, and costs a trip to the broker.
"""

from __future__ import annotations

from typing import Any

from celery import Task
from celery.loaders.base import BaseLoader
from celery.signals import task_postrun, task_prerun, task_success

_SIGNALS = (task_prerun, task_postrun, task_success)
_OF_TASKS = ("__call__", "before_start", "on_success", "after_return")
_OF_LOADERS = ("on_task_init", "on_process_cleanup")


def is_tidied(task: Any) -> bool:
    """Whether code that is not Celery's own runs around a call of this task that ends well: receivers of signals, or
    what the task's class or the app's loader overrides.
    """
    loader = type(task.app.loader)
    return (
        any(signal.has_listeners(task) for signal in _SIGNALS)
        or any(_defines(type(task), name) is not Task for name in _OF_TASKS)
        or any(_defines(loader, name) is not BaseLoader for name in _OF_LOADERS)
    )


def _defines(kind: type, name: str) -> type:
    """The class that an attribute comes from. Not what Celery's own look tells: a worker puts a wrapper of Celery's in
    the place of `Task.__call__`, which then counts as the app's.
    """
    return next(base for base in kind.__mro__ if name in vars(base))
