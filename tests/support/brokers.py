"""The brokers that the acceptance tests can run on, as plain children of the test: Redis, or RabbitMQ where installed.

Never leaves anything behind: RabbitMQ gets a port mapper of its own, so that it does not start the machine's.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
from pathlib import Path
from typing import Final, Protocol

from kombu import Connection

from docket_celery.embedded.process import Child, free_port

RABBITMQ_PROGRAM: Final = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""Where the package puts it; the one on PATH is a wrapper that insists on the machine's own instance."""


class Broker(Protocol):
    """A running broker that a test can hurt."""

    def url(self) -> str: ...

    def freeze(self) -> None:
        """Connections stay open and nothing answers."""
        ...

    def thaw(self) -> None: ...

    def stop(self) -> None: ...

    def restart(self) -> None: ...


def purge(broker_url: str) -> None:
    """Deletes every message of docket's queues; on Redis, everything."""
    with Connection(broker_url) as connection:
        channel = connection.channel()
        if broker_url.startswith("redis"):
            channel.client.flushall()
            return
        for queue in ("docket", "docket.ticks"):
            channel.queue_declare(queue, durable=True, auto_delete=False, exclusive=False)
            channel.queue_purge(queue)


class RabbitMQ:
    """One RabbitMQ node on loopback with data, cookie and port mapper of its own. A context manager that ends it."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        plugins = directory / "plugins"
        plugins.write_text("[].\n")
        mapper = str(free_port())
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "ERL_EPMD_PORT": mapper,
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
            "RABBITMQ_NODENAME": f"docket{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(directory / "data"),
            "RABBITMQ_LOG_BASE": str(directory / "log"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RUNNING_UNDER_SYSTEMD": "1",  # The script then becomes the server instead of starting one.
        }
        epmd = shutil.which("epmd")
        assert epmd is not None, "RabbitMQ is here, but not the epmd of Erlang"
        command = [epmd, "-port", mapper, "-address", "127.0.0.1"]
        self._mapper = Child.start(command, name="epmd", log=directory / "epmd.log", env=self._environment)
        try:
            self._server = self._launch()
        except BaseException:
            self._mapper.kill()
            raise

    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    def freeze(self) -> None:
        self._server.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._server.signal(signal.SIGCONT)

    def stop(self) -> None:
        self._server.kill()

    def restart(self) -> None:
        """The same node again, with the data it had."""
        self.stop()
        self._server = self._launch()

    def _launch(self) -> Child:
        log = self._directory / "rabbitmq.log"
        child = Child.start([RABBITMQ_PROGRAM], name="rabbitmq", log=log, env=self._environment, cwd=self._directory)
        child.wait_until(lambda: _answers(self.port), timeout=60.0)
        return child

    def __enter__(self) -> RabbitMQ:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._mapper.kill()


def _answers(port: int) -> bool:
    """A server that has come up answers a header it does not know with the one it wants."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0) as connection:
            connection.sendall(b"AMQP\x00\x00\x00\x00")
            return connection.recv(8).startswith(b"AMQP")
    except OSError:
        return False
