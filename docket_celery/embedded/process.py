"""Child processes that are stopped by pid and do not outlive their starter.

Never daemonises and never searches for processes by name: what was not started here cannot be hurt here.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_POLL: Final = 0.02


class StartFailed(RuntimeError):
    """A server did not come up; the message holds the end of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """An account to run a child under, instead of the caller's own."""

    name: str
    uid: int
    gid: int


class Child:
    """A running child process in a session of its own, with its output in a log file.

    A terminal's Ctrl-C does not reach it: its starter decides when it ends. On Linux the kernel sends `death_signal`
    when the *thread* that started it ends, however that happens; elsewhere nothing does.
    """

    def __init__(self, process: subprocess.Popen[bytes], name: str, log: Path) -> None:
        self.name = name
        self.log = log
        self._process = process
        self._swept = False

    @classmethod
    def start(
        cls,
        command: Sequence[str | Path],
        *,
        log: Path,
        name: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        user: User | None = None,
        death_signal: Signals = signal.SIGKILL,
    ) -> Child:
        """Starts `command`; its output is appended to `log`. Raises `OSError` when it cannot be executed."""
        identity = {} if user is None else {"user": user.uid, "group": user.gid, "extra_groups": ()}
        with log.open("ab") as output:
            process = subprocess.Popen(
                [os.fspath(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=None if env is None else dict(env),
                cwd=cwd,
                start_new_session=True,
                preexec_fn=_die_with_parent(death_signal),
                **identity,  # type: ignore[call-overload]
            )
        return cls(process, name or Path(command[0]).name, log)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process itself still runs. Once it is seen to have ended, the rest of its group is killed."""
        if self._process.poll() is None:
            return True
        self._sweep()
        return False

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative for the signal that ended it."""
        return None if self.alive else self._process.returncode

    def signal(self, number: Signals) -> None:
        """Signals the process alone; does nothing once it has ended."""
        if self.alive:
            self._process.send_signal(number)

    def signal_group(self, number: Signals) -> None:
        """Signals the process and every child it started, as long as they stay in its group."""
        if self.alive:
            os.killpg(self.pid, number)

    def kill(self) -> None:
        """SIGKILL to the process and its whole group at once, and waits."""
        self.signal_group(signal.SIGKILL)
        self._process.wait()
        self._sweep()

    def stop(self, *gentle: Signals, timeout: float = 10.0) -> None:
        """Ends the process: each gentle signal (default SIGTERM) gets `timeout` seconds, then SIGKILL. Waits."""
        for number in gentle or (signal.SIGTERM,):
            self.signal(number)
            self.signal(signal.SIGCONT)  # A frozen process acts on nothing else.
            if self.wait(timeout):
                break
        self.kill()

    def wait(self, timeout: float) -> bool:
        """Whether the process ended within `timeout` seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)
        return not self.alive

    def wait_until(self, ready: Callable[[], bool], timeout: float) -> None:
        """Returns when `ready` answers true; kills the child and raises `StartFailed` when it ends or is too slow."""
        deadline = time.monotonic() + timeout
        try:
            while not (self.alive and ready()):
                if not self.alive:
                    raise StartFailed(f"{self.name} ended with status {self.exit_code} while starting:\n{self.tail()}")
                if time.monotonic() >= deadline:
                    raise StartFailed(f"{self.name} was not ready within {timeout:g} s:\n{self.tail()}")
                time.sleep(_POLL)
        except BaseException:
            self.kill()
            raise

    def tail(self, lines: int = 20) -> str:
        """The last lines of its log."""
        with contextlib.suppress(OSError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        return ""

    def _sweep(self) -> None:
        """Kills what the ended process left in its group, once: later the number may belong to somebody else."""
        if not self._swept:
            self._swept = True
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)


def free_port() -> int:
    """A TCP port on 127.0.0.1 that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _die_with_parent(number: Signals) -> Callable[[], None] | None:
    """What the new child runs before its program: asks the kernel for `number` at the parent's death."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def arm() -> None:
        prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        if os.getppid() != parent:  # The parent died before the kernel was asked.
            os._exit(1)

    return arm
