"""One worker's registration, kept from a thread of its own: a database that hangs never holds up whoever asks for it.

Wishes are served one at a time and the last one wins: a call that was stuck can never undo what was asked for since.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

RENEW_EVERY = 5.0
"""Seconds between two registrations."""


class Registration:
    """Calls `register` again and again between `begin` and `end`, then `unregister` once. Neither may raise."""

    def __init__(self, register: Callable[[], None], unregister: Callable[[], None]) -> None:
        self._register = register
        self._unregister = unregister
        self._changed = threading.Condition()
        self._wanted = False
        self._made = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, *, patience: float) -> None:
        """Returns once it is registered, or after `patience` seconds."""
        with self._changed:
            self._wanted = True
            if self._thread is None:
                self._made.clear()
                self._thread = threading.Thread(target=self._work, name="docket-registration", daemon=True)
                self._thread.start()
        self._made.wait(patience)

    def end(self, *, patience: float) -> None:
        """Returns once it is unregistered, or after `patience` seconds; what hangs then is finished when it can be."""
        with self._changed:
            self._wanted = False
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(patience)

    def _work(self) -> None:
        while True:
            while self._wanted:
                self._register()
                self._made.set()
                with self._changed:
                    self._changed.wait_for(lambda: not self._wanted, RENEW_EVERY)
            self._unregister()
            with self._changed:
                if not self._wanted:
                    self._thread = None
                    return
