"""What is wrong with an installation, and what to do about it: pure judgement over facts that somebody else gathered.

One small function per check, each from facts to one finding. A fact that could not be gathered is None, and the checks
that need it say nothing.
"""

from __future__ import annotations

from docket_celery.worker.doctor import database, fleet, settings
from docket_celery.worker.doctor.facts import Facts, Finding

__all__ = ["Facts", "Finding", "diagnose"]


def diagnose(facts: Facts) -> tuple[Finding, ...]:
    """Every finding, in the order in which one would look."""
    findings = (check(facts) for check in (*database.CHECKS, *fleet.CHECKS, *settings.CHECKS))
    return tuple(finding for finding in findings if finding is not None)
