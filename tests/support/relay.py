"""A relay before a server, which can fall silent: its connections stay open and carry nothing any more."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Relay:
    """Passes bytes to `port` on this machine. While it is silent, what arrives is dropped."""

    def __init__(self, port: int) -> None:
        self._server = ("127.0.0.1", port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = [self._listening]
        self._silent = threading.Event()
        self.has_dropped = threading.Event()
        self.port: int = self._listening.getsockname()[1]

    def fall_silent(self) -> None:
        self._silent.set()

    def speak_again(self) -> None:
        """What was dropped stays lost."""
        self._silent.clear()

    def accept(self) -> None:
        """Serves until it is closed."""
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(self._server)
                self._open += [client, server]
                for source, target in ((client, server), (server, client)):
                    threading.Thread(target=self._pass, args=(source, target), daemon=True).start()

    def close(self) -> None:
        for line in self._open:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if self._silent.is_set():
                    self.has_dropped.set()
                else:
                    target.sendall(data)
            target.shutdown(socket.SHUT_WR)


@contextmanager
def relay_to(port: int) -> Iterator[Relay]:
    relay = Relay(port)
    threading.Thread(target=relay.accept, daemon=True).start()
    try:
        yield relay
    finally:
        relay.close()
