"""The configured claim policy reaches the store with every scan of the dispatcher."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from support.scene import Scene

from docket_celery.config import Config
from docket_celery.dispatcher import Dispatcher
from docket_celery.engine import build
from docket_celery.storage import memory
from docket_celery.storage.contracts.claims import Lease
from docket_celery.testing import ManualClock, SequentialIds


class CountingChance:
    """Goes round the numbers 0, 0.1, ... 0.9."""

    drawn = 0

    def fraction(self) -> float:
        self.drawn += 1
        return self.drawn % 10 / 10


def _dispatcher(place: Scene, **settings: Any) -> tuple[Dispatcher, list[Lease]]:
    launched: list[Lease] = []

    def launch(leases: Sequence[Lease]) -> int:
        launched.extend(leases)
        return len(leases)

    config = Config.from_mapping({f"docket_{name}": value for name, value in settings.items()})
    engine = build(
        config,
        place.storage,
        lambda name: pytest.fail(f"a scan resolves no node, got {name!r}"),
        pause=lambda seconds: None,
        clock=place.clock,
        jitter=CountingChance(),
    )
    return Dispatcher(engine, launch), launched


@pytest.fixture
def place(clock: ManualClock, ids: SequentialIds) -> Scene:
    """A memory store with a backlog of tenant a, begun before the first run of tenant b."""
    scene = Scene(memory.open_storage(clock=clock, ids=ids), clock, ids)
    for number in range(20):
        scene.start(f"a-{number:02}", tenant="a")
    scene.clock.advance(1)
    scene.start("b-00", tenant="b")
    return scene


def test_without_tenants_the_oldest_runs_are_launched(place: Scene) -> None:
    dispatcher, launched = _dispatcher(place, max_in_flight=2)
    dispatcher.tick()
    assert [lease.run_id for lease in launched] == ["a-00", "a-01"]


def test_where_tenants_are_required_each_gets_its_turn(place: Scene) -> None:
    dispatcher, launched = _dispatcher(place, max_in_flight=2, tenant_mode="required")
    dispatcher.tick()
    assert sorted(lease.run_id for lease in launched) == ["a-00", "b-00"]


def test_single_refills_reach_every_tenant_soon(place: Scene) -> None:
    dispatcher, _ = _dispatcher(place, max_in_flight=100, tenant_mode="required")
    refilled = [dispatcher.refill() for _ in range(10)]
    assert "b" in {lease.tenant for taken in refilled if taken is not None for lease in taken.batch.leases}


def test_a_tenants_cap_holds_for_ticks_and_refills_together(place: Scene) -> None:
    dispatcher, launched = _dispatcher(place, max_in_flight=100, tenant_mode="required", tenant_cap=3)
    dispatcher.tick()
    assert sorted(lease.run_id for lease in launched) == ["a-00", "a-01", "a-02", "b-00"]
    assert dispatcher.refill() is None
