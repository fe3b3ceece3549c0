"""The peers' own virtual environment: made once from the pinned requirements, and again when these change."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
PACKAGES = ("langgraph", "langgraph-checkpoint-postgres", "dbos", "absurd-sdk", "procrastinate", "pgqueuer",
            "psycopg", "asyncpg", "sqlalchemy")  # fmt: skip
_VERSIONS = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"


def default_home() -> Path:
    """Where environments are kept, unless somebody says otherwise."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "docket-celery-peers"


def interpreter(home: Path) -> Path:
    """The Python of the environment that has these pins; makes it if need be."""
    content = REQUIREMENTS.read_bytes() + sys.version.encode()
    place = home / hashlib.sha256(content).hexdigest()[:16]
    python = place / "bin" / "python"
    done = place / "done"
    if not done.exists():
        print(f"making the peers' environment in {place}")
        shutil.rmtree(place, ignore_errors=True)
        venv.create(place, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", "-r", REQUIREMENTS], check=True)
        done.touch()
    return python


def versions(python: Path) -> dict[str, str]:
    """The versions of the peers that this interpreter has."""
    found = subprocess.run([python, "-c", _VERSIONS, *PACKAGES], check=True, capture_output=True, text=True)
    return dict(zip(PACKAGES, found.stdout.split(), strict=True))
