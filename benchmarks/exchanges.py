"""Counts exchanges with PostgreSQL: a proxy on the loopback that notes how often the client speaks after the server.

A statement that travels in several packets is one exchange, and so are several statements sent in one go.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class Exchanges:
    """What has passed through the proxy so far. Only one thread may use the database through it at a time."""

    port: int
    count: int = 0
    _client_spoke: bool = field(default=False, repr=False)

    def of(self, operation: Callable[[], object]) -> int:
        """The exchanges that `operation` takes."""
        before = self.count
        operation()
        return self.count - before

    def note(self, from_client: bool) -> None:
        """Takes notice of one packet."""
        self.count += from_client and not self._client_spoke
        self._client_spoke = from_client


@contextmanager
def counted(port: int) -> Iterator[Exchanges]:
    """A proxy to the server on `port`, for as long as the context lasts."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        exchanges = Exchanges(port=listener.getsockname()[1])
        threading.Thread(target=_accept, args=(listener, port, exchanges), daemon=True).start()
        yield exchanges


def _accept(listener: socket.socket, port: int, exchanges: Exchanges) -> None:
    while True:
        try:
            client, _ = listener.accept()
        except OSError:  # The context has ended.
            return
        server = socket.create_connection(("127.0.0.1", port))
        for source, target, from_client in ((client, server, True), (server, client, False)):
            source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=_pump, args=(source, target, exchanges, from_client), daemon=True).start()


def _pump(source: socket.socket, target: socket.socket, exchanges: Exchanges, from_client: bool) -> None:
    try:
        while packet := source.recv(65_536):
            exchanges.note(from_client)
            target.sendall(packet)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        return
