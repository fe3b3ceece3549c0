"""The pruner: which policy the options make, and how long it goes on."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from docket_celery.config import Config
from docket_celery.errors import ConfigError
from docket_celery.pruner import prune, retention
from docket_celery.storage.contracts.retention import PruneCount, PrunePolicy
from docket_celery.storage.contracts.values import SYSTEM, Scope


class Store:
    """Answers each pass with the next of the given counts."""

    def __init__(self, counts: Sequence[PruneCount]) -> None:
        self.left = list(counts)
        self.asked: list[tuple[Scope, PrunePolicy]] = []

    def prune(self, scope: Scope, policy: PrunePolicy) -> PruneCount:
        self.asked.append((scope, policy))
        return self.left.pop(0)


def _engine(*counts: PruneCount) -> tuple[Any, Store]:
    store = Store(counts)
    return SimpleNamespace(storage=SimpleNamespace(retention=store)), store


KEEP = PrunePolicy(runs=None, events=None)


def test_by_default_everything_is_kept() -> None:
    assert retention(Config()) == KEEP


def test_options_are_ages_in_seconds() -> None:
    policy = retention(Config(run_retention=60.0, event_retention=5.0), dry_run=True)
    assert (policy.runs, policy.events, policy.graphs) == (timedelta(minutes=1), timedelta(seconds=5), None)
    assert policy.dry_run


def test_graph_versions_go_only_when_asked_for_at_the_age_of_runs() -> None:
    assert retention(Config(run_retention=60.0), graphs=True).graphs == timedelta(minutes=1)
    with pytest.raises(ConfigError, match="docket_run_retention is not set"):
        retention(Config(event_retention=60.0), graphs=True)


def test_it_goes_on_while_there_is_more_and_sums_up() -> None:
    engine, store = _engine(
        PruneCount(runs=2, events=5, more=True), PruneCount(runs=2, more=True), PruneCount(runs=1, graphs=1)
    )
    assert prune(engine, KEEP) == PruneCount(runs=5, events=5, graphs=1)
    assert store.asked == [(SYSTEM, KEEP)] * 3


def test_it_ends_when_it_is_told_to() -> None:
    engine, _ = _engine(*[PruneCount(runs=2, more=True)] * 5)
    seen: list[int] = []

    def go_on(total: PruneCount) -> bool:
        seen.append(total.runs)
        return total.runs < 4

    assert prune(engine, KEEP, go_on=go_on) == PruneCount(runs=4, more=True)
    assert seen == [2, 4]


def test_it_leaves_the_field_to_another_pruner() -> None:
    engine, store = _engine(PruneCount(runs=2, more=True), PruneCount(busy=True, more=True))
    assert prune(engine, KEEP) == PruneCount(runs=2, busy=True, more=True)
    assert store.left == []
