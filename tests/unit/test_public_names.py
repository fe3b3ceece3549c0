"""The public names: sorted, all there, and typed as their users see them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import docket_celery

ROOT = Path(__file__).parents[2]


def test_every_public_name_is_there_and_the_list_is_sorted() -> None:
    assert all(getattr(docket_celery, name) is not None for name in docket_celery.__all__)
    assert len(set(docket_celery.__all__)) == len(docket_celery.__all__)


def test_importing_the_package_loads_neither_celery_nor_the_driver() -> None:
    """Celery imports this package on every command."""
    code = "import sys, docket_celery; print(sorted({'celery', 'psycopg', 'pydantic', 'alembic'} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert loaded.stdout.strip() == "[]", loaded.stdout + loaded.stderr


def test_the_public_names_have_the_types_that_users_rely_on() -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "tests/typing/api.py"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
