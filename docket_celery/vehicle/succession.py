"""The next run of a slot, which the commit that frees the slot may bring along: claimed for it, or only leased."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from docket_celery.errors import StoreError
from docket_celery.storage.contracts.run_store import RunStore
from docket_celery.storage.contracts.taking import Taken, TakeRequest

logger = logging.getLogger("docket_celery")


def nobody() -> None:
    """No request: the slot takes no further run."""
    return


@dataclass(slots=True)
class Succession:
    """The next run of one slot. A vehicle asks for it with the commit that ends a drain, and notes the answer here.
    Whoever keeps the slot at work then drives that run, or publishes its lease, or asks again without a commit.

    ask         makes the request to send with such a commit; None when the slot takes no further run
    asked       the latest such request, if it was answered without a run: nothing is held under its token, which may be
                used for the next one
    asked_at    when the latest commit was sent, in monotonic seconds
    heard_at    when its answer came
    taken       the run that came along, until it is driven or its lease is published
    has_failed  a node has failed in the task's own thread: what broke there may fail the next run too
    """

    ask: Callable[[], TakeRequest | None] = nobody
    asked: TakeRequest | None = None
    asked_at: float = 0.0
    heard_at: float = 0.0
    taken: Taken | None = None
    has_failed: bool = False

    def pop(self) -> Taken | None:
        """The run that came along, once."""
        taken, self.taken = self.taken, None
        return taken

    def pop_lease(self) -> Taken | None:
        """The run that came along if it was only leased, once."""
        return self.pop() if self.taken is not None and self.taken.claim is None else None

    def unmet(self) -> TakeRequest | None:
        """The request that was answered without a run, once."""
        asked, self.asked = self.asked, None
        return asked


def give_back(slot: Succession, runs: RunStore) -> None:
    """Releases, uncounted, a run that came along and is not going to be driven here, if there is one."""
    taken = slot.pop()
    if taken is None:
        return
    (lease,) = taken.batch.leases
    try:
        runs.release_claim(lease.run_id, lease.claim_token, uncounted=True)
    except StoreError:
        logger.warning("run %s, which had come along, could not be given back", lease.run_id, exc_info=True)
