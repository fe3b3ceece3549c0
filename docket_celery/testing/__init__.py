"""For tests of graphs: the production runtime without a database, a broker or a wait.

    run_inline        drives a graph from its input to its end
    InlineRun         the same, one moment at a time
    run_with_crashes  the same again after a crash around every commit, and the outcome must not change

Time is a manual clock: a retry, a sleep or a deadline moves it forward instead of taking time.

Tests that want real workers enable the plugin `docket_celery.testing.celery_setup`, which nothing here imports: it runs
pytest-celery's `celery_setup` on processes of the test's own.
"""

from __future__ import annotations

from docket_celery.testing.crashes import CrashChangedOutcome, run_with_crashes
from docket_celery.testing.fixed import FixedJitter, ManualClock, SequentialIds
from docket_celery.testing.inline import UNANSWERED, InlineOptions, InlineResult, InlineRun, run_inline

__all__ = [
    "UNANSWERED",
    "CrashChangedOutcome",
    "FixedJitter",
    "InlineOptions",
    "InlineResult",
    "InlineRun",
    "ManualClock",
    "SequentialIds",
    "run_inline",
    "run_with_crashes",
]
