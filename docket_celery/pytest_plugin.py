"""The fixtures that pytest finds by itself once this package is installed. Cheap to import: every pytest run does."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from docket_celery.testing import InlineResult, InlineRun, ManualClock


@pytest.fixture
def docket_clock() -> ManualClock:
    """A clock that moves only when told to, by the test or by a run that waits."""
    from docket_celery.testing import ManualClock

    return ManualClock()


@pytest.fixture
def docket_run_inline(docket_clock: ManualClock) -> Callable[..., InlineResult]:
    """`docket_celery.testing.run_inline` on `docket_clock`."""
    from docket_celery.testing import run_inline

    return partial(run_inline, clock=docket_clock)


@pytest.fixture
def docket_inline_run(docket_clock: ManualClock) -> Callable[..., InlineRun]:
    """`docket_celery.testing.InlineRun` on `docket_clock`: moment by moment."""
    from docket_celery.testing import InlineRun

    return partial(InlineRun, clock=docket_clock)


@pytest.fixture
def docket_run_with_crashes(docket_clock: ManualClock) -> Callable[..., InlineResult]:
    """`docket_celery.testing.run_with_crashes` on `docket_clock`."""
    from docket_celery.testing import run_with_crashes

    return partial(run_with_crashes, clock=docket_clock)
