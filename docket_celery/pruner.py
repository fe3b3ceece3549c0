"""Applies the configured retention, pass after pass. Each pass is bounded; nobody ever waits for one.

Which runs, events and graph versions are old enough is judged by the store, on its own clock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta

from docket_celery.config import Config
from docket_celery.engine import Engine
from docket_celery.errors import ConfigError
from docket_celery.storage.contracts.retention import PruneCount, PrunePolicy
from docket_celery.storage.contracts.values import SYSTEM, Scope

logger = logging.getLogger("docket_celery")


def retention(config: Config, *, graphs: bool = False, dry_run: bool = False) -> PrunePolicy:
    """What may go under these options. Graph versions only if asked for: at the age of runs, which must be set."""
    if graphs and config.run_retention is None:
        raise ConfigError("docket_run_retention is not set; graph versions are pruned at the age that it names")
    runs = _age(config.run_retention)
    return PrunePolicy(runs=runs, events=_age(config.event_retention), graphs=runs if graphs else None, dry_run=dry_run)


def prune_once(engine: Engine, policy: PrunePolicy, *, scope: Scope = SYSTEM) -> PruneCount:
    """One bounded pass."""
    return engine.storage.retention.prune(scope, policy)


def prune(
    engine: Engine,
    policy: PrunePolicy,
    *,
    scope: Scope = SYSTEM,
    go_on: Callable[[PruneCount], bool] = lambda total: True,
) -> PruneCount:
    """Passes until nothing is left to remove, another pruner is at work, or `go_on`, told the total so far, says no."""
    total = prune_once(engine, policy, scope=scope)
    while total.more and not total.busy and go_on(total):
        total += prune_once(engine, policy, scope=scope)
    if not policy.dry_run and (total.runs or total.events or total.graphs):
        logger.info("pruned %d runs, %d events, %d graph versions", total.runs, total.events, total.graphs)
    return total


def _age(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)
