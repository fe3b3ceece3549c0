"""From a moment to its fenced write, and to whoever should know."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace
from support.builders import TTL, a_run
from support.clock import NOON
from support.rig import Nudges

from docket_celery.lifecycle import NoWaker, proposal, wake_when_due
from docket_celery.run.moment import CheckpointType, Continue, Moment, Park, Replaced
from docket_celery.storage.contracts.values import Release, Retain

MOMENT = Moment(
    run=a_run(checkpoint_seq=5, event_seq=1),
    events=(),
    changes=(Replaced(name="total", value=1),),
    checkpoint_type=CheckpointType.STEP_COMMITTED,
    disposition=Continue(),
)


def test_a_moments_write_follows_the_sequence_it_was_computed_on() -> None:
    write = proposal(MOMENT, claim_token="ours", inbox_seq=3, orphan_ttl=TTL, quiet=True, commit_id="c-1")
    assert (write.run, write.changes, write.checkpoint_type) == (MOMENT.run, MOMENT.changes, MOMENT.checkpoint_type)
    assert (write.expected_checkpoint_seq, write.claim_token, write.inbox_seq, write.commit_id) == (4, "ours", 3, "c-1")
    assert write.schedule == Retain(ttl=TTL, quiet=True)


@pytest.mark.parametrize(
    "park",
    [Park(kind="immediate"), Park(kind="at", at=NOON), Park(kind="external"), Park(kind="terminal")],
    ids=lambda park: park.kind,
)
def test_a_park_releases_the_claim_with_its_schedule(park: Park) -> None:
    parked = replace(MOMENT, disposition=park)
    write = proposal(parked, claim_token="ours", inbox_seq=0, orphan_ttl=TTL, quiet=True, commit_id="c-1")
    assert write.schedule == Release(kind=park.kind, at=park.at)


@pytest.mark.parametrize(
    ("disposition", "after"),
    [
        (Continue(), []),
        (Park(kind="immediate"), [0.0]),
        (Park(kind="at", at=NOON + timedelta(seconds=2)), [2.0]),
        (Park(kind="at", at=NOON - timedelta(seconds=2)), [0.0]),
        (Park(kind="external"), []),
        (Park(kind="terminal"), []),
    ],
    ids=["continue", "immediate", "later", "past", "external", "terminal"],
)
def test_only_what_becomes_due_wakes_the_dispatcher(disposition: Continue | Park, after: list[float]) -> None:
    nudges = Nudges()
    wake_when_due(replace(MOMENT, disposition=disposition), nudges, now=NOON)
    assert nudges.after == after


def test_nobody_needs_to_be_woken() -> None:
    NoWaker().wake(after=1.0)
