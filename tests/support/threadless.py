"""A process that has no thread left to give, as in a container that bounds them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import pytest


def _refused(thread: threading.Thread) -> NoReturn:
    raise RuntimeError("can't start new thread")


@contextmanager
def no_threads() -> Iterator[None]:
    """No thread can be started meanwhile; those that run go on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", _refused)
        yield
