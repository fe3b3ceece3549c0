"""pytest-celery is asked for only by the plugin that needs it, and its absence is told with what to install."""

from __future__ import annotations

import subprocess
import sys

ABSENT = "import sys; sys.modules['pytest_celery'] = None; "


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", ABSENT + code], capture_output=True, text=True, timeout=60)


def test_without_pytest_celery_all_but_the_plugin_can_be_imported() -> None:
    ended = python(
        "import docket_celery.testing.containers, docket_celery.testing.processes, docket_celery.pytest_plugin"
    )
    assert ended.returncode == 0, ended.stderr


def test_without_pytest_celery_the_plugin_names_the_extra() -> None:
    ended = python("import docket_celery.testing.celery_setup")
    assert ended.returncode != 0
    assert "ImportError: docket_celery.testing.celery_setup needs pytest-celery" in ended.stderr
    assert "pip install 'docket-celery[pytest-celery]'" in ended.stderr
