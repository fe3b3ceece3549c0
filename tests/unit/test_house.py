"""The house's own rules: clean under ruff and strict mypy, modules that say what they are for, none too long."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "docket_celery"
LONGEST = 400
"""Lines of a module: a longer one holds more than one idea."""

MODULES = sorted(path.relative_to(ROOT).as_posix() for path in PACKAGE.rglob("*.py"))


def _run(*command: str) -> None:
    found = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert found.returncode == 0, found.stdout + found.stderr


def test_ruff_finds_nothing() -> None:
    _run("ruff", "check", "--no-cache", ".")


def test_mypy_finds_nothing_under_strict() -> None:
    _run("mypy", "--strict", "docket_celery")


@pytest.mark.parametrize("module", MODULES)
def test_every_module_says_what_it_is_for(module: str) -> None:
    assert ast.get_docstring(ast.parse((ROOT / module).read_text(encoding="utf-8")))


@pytest.mark.parametrize("module", MODULES)
def test_no_module_outgrows_its_idea(module: str) -> None:
    lines = (ROOT / module).read_text(encoding="utf-8").count("\n")
    assert lines <= LONGEST, f"{module} has {lines} lines, the bound is {LONGEST}"
