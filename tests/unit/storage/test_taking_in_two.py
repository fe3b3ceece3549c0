"""Taking by a scan and a redemption, when what was scanned is gone by the redemption."""

from __future__ import annotations

from support.builders import a_scan
from support.scene import Scene

from docket_celery.errors import StaleFence
from docket_celery.storage import memory
from docket_celery.storage.contracts.claims import ClaimBatch, ClaimPolicy, Lease, Redeemed
from docket_celery.storage.contracts.taking import take_in_two
from docket_celery.testing import ManualClock, SequentialIds


class _Snatching:
    """A store in which somebody redeems the first `snatched` leases before their taker does."""

    def __init__(self, scene: Scene, snatched: int) -> None:
        self._scene = scene
        self._left = snatched

    def claim_due(self, policy: ClaimPolicy) -> ClaimBatch:
        return self._scene.runs.claim_due(policy)

    def redeem_claim(self, lease: Lease, *, token: str) -> Redeemed:
        if self._left:
            self._left -= 1
            raise StaleFence("snatched")
        return self._scene.runs.redeem_claim(lease, token=token)


def _scene(clock: ManualClock, ids: SequentialIds) -> Scene:
    scene = Scene(memory.open_storage(clock=clock), clock, ids)
    for number in range(3):
        scene.start(f"run-{number}")
    return scene


def test_a_run_that_was_snatched_away_does_not_end_the_taking(clock: ManualClock, ids: SequentialIds) -> None:
    taken = take_in_two(_Snatching(_scene(clock, ids), snatched=2), a_scan(limit=1), "mine")
    assert isinstance(taken.claim, Redeemed)
    assert [lease.run_id for lease in taken.batch.leases] == [taken.claim.run.id] == ["run-2"]


def test_nothing_is_taken_once_all_was_snatched_away(clock: ManualClock, ids: SequentialIds) -> None:
    taken = take_in_two(_Snatching(_scene(clock, ids), snatched=3), a_scan(limit=1), "mine")
    assert (taken.claim, taken.batch.leases) == (None, ())
