"""The one report of each drain: how it ended, or that it crashed. Tells hooks and the log, and decides nothing."""

from __future__ import annotations

import logging

from docket_celery.runtime.failures import message_of, type_name
from docket_celery.telemetry.hook import DrainFinished, Hook, VehicleCrashed
from docket_celery.vehicle.drain import Drain
from docket_celery.vehicle.outcomes import Outcome, Parked, Unreached

logger = logging.getLogger("docket_celery")


def report_end(hook: Hook, drain: Drain, outcome: Outcome) -> None:
    """One fact and one line for a drain that came to its end."""
    fact = DrainFinished(
        run_id=drain.lease.run_id,
        graph_id=drain.lease.graph_id,
        claim_attempt=drain.claim_attempt,
        outcome=outcome.kind,
        detail=str(outcome),
        committed_moments=drain.committed,
        elapsed=drain.elapsed,
        claim_held=drain.claim_held,
        boundary=outcome.boundary if isinstance(outcome, Parked) else None,
    )
    hook(fact)
    logger.log(
        logging.WARNING if isinstance(outcome, Unreached) else logging.INFO,
        "run=%s graph=%s attempt=%d moments=%d elapsed=%.3f outcome=%s",
        fact.run_id,
        fact.graph_id,
        fact.claim_attempt,
        fact.committed_moments,
        fact.elapsed,
        fact.detail,
    )


def report_crash(hook: Hook, drain: Drain, error: BaseException) -> None:
    """One fact and one line for a drain that ended with an exception, or that hung and was ended from outside."""
    fact = VehicleCrashed(
        run_id=drain.lease.run_id,
        graph_id=drain.lease.graph_id,
        claim_attempt=drain.claim_attempt,
        committed_moments=drain.committed,
        claim_held=drain.claim_held,
        error=type_name(error),
        message=message_of(error),
    )
    hook(fact)
    logger.error(
        "run=%s graph=%s attempt=%d moments=%d: the vehicle crashed with %s: %s",
        fact.run_id,
        fact.graph_id,
        fact.claim_attempt,
        fact.committed_moments,
        fact.error,
        fact.message,
    )
