"""The built wheel carries everything that is read at run time; nothing is installed."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names of the files inside a wheel built from this checkout."""
    directory = tmp_path_factory.mktemp("wheel")
    built = subprocess.run(
        [sys.executable, "-c", f"from hatchling.build import build_wheel; print(build_wheel({str(directory)!r}))"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert built.returncode == 0, built.stderr
    with zipfile.ZipFile(directory / built.stdout.strip().splitlines()[-1]) as wheel:
        return set(wheel.namelist())


def test_every_file_of_the_package_is_inside(files: set[str]) -> None:
    wanted = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "docket_celery").rglob("*")
        if path.suffix in (".py", ".sql", ".typed", ".json") and "__pycache__" not in path.parts
    }
    assert "docket_celery/py.typed" in wanted
    assert "docket_celery/graph/graph.schema.json" in wanted
    assert "docket_celery/storage/postgres/sql/claims.sql" in wanted
    assert wanted <= files


def test_the_migrations_are_inside_the_package(files: set[str]) -> None:
    wanted = {
        f"docket_celery/{path.relative_to(ROOT).as_posix()}"
        for path in (ROOT / "migrations").rglob("*")
        if path.suffix in (".py", ".sql")
    }
    assert "docket_celery/migrations/versions/0001_initial.sql" in wanted
    assert wanted <= files


def test_nothing_else_is_inside(files: set[str]) -> None:
    assert {name.partition("/")[0] for name in files if ".dist-info/" not in name} == {"docket_celery"}


def test_the_command_is_announced_to_celery(files: set[str]) -> None:
    assert any(name.endswith(".dist-info/entry_points.txt") for name in files)
