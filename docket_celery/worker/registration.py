"""One worker's registration, made in a thread of its own: a database that hangs never holds up whoever asks for it.

Wishes are served one at a time and the last one wins: a call that was stuck can never undo what was asked for since.
Nothing is renewed unasked, so that the registration of a worker whose consumer stands still runs out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from docket_celery.daemons import begin_daemon


class Registration:
    """Calls `register` when it is asked to, and `unregister` once in the end. Neither may raise."""

    def __init__(self, register: Callable[[], None], unregister: Callable[[], None]) -> None:
        self._register = register
        self._unregister = unregister
        self._changed = threading.Condition()
        self._wanted = False
        self._asked = False
        self._made = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, *, patience: float) -> None:
        """Returns once it is registered, or after `patience` seconds."""
        self._made.clear()
        self.ask()
        self._made.wait(patience)

    def ask(self) -> None:
        """Has it registered, or registered again. Returns at once."""
        with self._changed:
            self._wanted = self._asked = True
            if self._thread is None:
                self._thread = begin_daemon(self._work, "docket-registration")
            self._changed.notify_all()

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
            with self._changed:
                self._changed.wait_for(lambda: self._asked or not self._wanted)
                self._asked = False
                wanted = self._wanted
            if wanted:
                self._register()
                self._made.set()
                continue
            self._unregister()
            with self._changed:
                if not self._wanted:
                    self._thread = None
                    return
