"""Who comes next in a slot: a run that the commit which frees the slot may bring along, or the lease of one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from docket_celery.errors import StoreError
from docket_celery.storage.contracts.run_store import RunStore
from docket_celery.storage.contracts.taking import Taken, TakeRequest

logger = logging.getLogger("docket_celery")


def nobody() -> None:
    """Asks for no run: the slot ends with this one."""
    return


@dataclass(slots=True)
class Succession:
    """The next run of one slot. A vehicle asks for it and notes what came; whoever keeps the slot at work drives that
    run next, or passes its lease on, or asks again by itself.

    ask       what to send along with the commit that ends a drain; None when the slot is not to go on
    asked     what was sent along with the latest such commit, if that answered that nobody came: so its token, which is
              asked with once more, holds no run yet
    asked_at  when the latest was sent, in monotonic seconds
    heard_at  when the answer came
    taken     the run that came along, until it is driven or passed on
    """

    ask: Callable[[], TakeRequest | None] = nobody
    asked: TakeRequest | None = None
    asked_at: float = 0.0
    heard_at: float = 0.0
    taken: Taken | None = None

    def pop(self) -> Taken | None:
        """Who came along, once."""
        taken, self.taken = self.taken, None
        return taken

    def pop_lease(self) -> Taken | None:
        """Who came along as a lease, once."""
        return self.pop() if self.taken is not None and self.taken.claim is None else None

    def unmet(self) -> TakeRequest | None:
        """What was asked for along with a commit and brought nobody, once."""
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
