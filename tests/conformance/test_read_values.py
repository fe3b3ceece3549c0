"""Values that a redemption left behind: read under the fence, and kept by commits that do not carry them."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from support.builders import a_commit
from support.leaving import emptied
from support.scene import RETAIN, Scene

from docket_celery.errors import InvalidCommit, StaleFence
from docket_celery.run.moment import Appended, Change, Replaced
from docket_celery.storage.contracts.values import SYSTEM

FIELDS = {"log": [1, 2], "n": 1, "none": None, "text": "long " * 10_000}


def _read(scene: Scene, token: str, *names: str, seq: int = 1) -> dict[str, Any]:
    return scene.runs.read_values("run-1", token, names, checkpoint_seq=seq)


def _commit(scene: Scene, token: str, *changes: Change, **read: Any) -> None:
    """Commits these changes on the run with none of its values read but these."""
    before = scene.run()
    proposal = a_commit(emptied(before), token, at=scene.now, changes=changes, schedule=RETAIN)
    run = proposal.run.having_read(read)
    scene.runs.commit(SYSTEM, replace(proposal, run=run))


def test_the_holder_of_a_claim_reads_the_values_that_it_names(scene: Scene) -> None:
    scene.start(fields=FIELDS)
    token = scene.hold()
    before = scene.info()
    assert _read(scene, token, "n", "text") == {"n": 1, "text": FIELDS["text"]}
    assert _read(scene, token, *FIELDS) == FIELDS
    assert scene.info() == before


def test_what_a_redemption_leaves_unread_is_what_can_be_read(scene: Scene) -> None:
    scene.start(fields=FIELDS)
    claim = scene.runs.redeem_claim(scene.lease(), token="mine")
    left = _read(scene, "mine", *claim.run.unread) if claim.run.unread else {}
    assert claim.run.having_read(left) == scene.run()


def test_a_field_without_a_value_is_left_out(scene: Scene) -> None:
    scene.start(fields={"n": 1})
    assert _read(scene, scene.hold(), "n", "other") == {"n": 1}


def test_a_log_is_read_with_all_that_was_appended(scene: Scene) -> None:
    scene.start(fields=FIELDS)
    token = scene.hold()
    for seq in (2, 3):
        fields = {"log": [*scene.run().fields["log"], seq]}
        scene.commit("run-1", token, fields=fields, changes=(Appended(name="log", items=(seq,)),), schedule=RETAIN)
    assert _read(scene, token, "log", seq=3) == {"log": [1, 2, 2, 3]}


@pytest.mark.parametrize("seq", [0, 2])
def test_another_sequence_is_refused(scene: Scene, seq: int) -> None:
    scene.start(fields=FIELDS)
    token = scene.hold()
    with pytest.raises(StaleFence):
        _read(scene, token, "n", seq=seq)


def test_another_token_is_refused(scene: Scene) -> None:
    scene.start(fields=FIELDS)
    lease = scene.lease()
    scene.redeem(lease)
    for token in (lease.claim_token, "nobody's"):
        with pytest.raises(StaleFence):
            _read(scene, token, "n")


def test_a_run_that_moved_on_or_is_not_there_is_refused(scene: Scene) -> None:
    with pytest.raises(StaleFence):
        _read(scene, "any", "n")
    scene.start(fields=FIELDS)
    token = scene.hold()
    scene.mutate("run-1", fields={"n": 2})
    for seq in (1, 2):
        with pytest.raises(StaleFence):
            _read(scene, token, "n", seq=seq)


def test_a_commit_keeps_the_values_that_its_run_has_not_read(scene: Scene) -> None:
    scene.start(fields=FIELDS)
    token = scene.hold()
    _commit(scene, token, Replaced(name="n", value=2), Appended(name="log", items=(3,)), n=2)
    run = scene.run()
    assert (run.fields, run.unread) == ({**FIELDS, "n": 2, "log": [1, 2, 3]}, frozenset())
    assert _read(scene, token, "log", seq=2) == {"log": [1, 2, 3]}


def test_a_value_that_is_replaced_unread_is_the_new_one(scene: Scene) -> None:
    scene.start(fields=FIELDS)
    token = scene.hold()
    _commit(scene, token, Replaced(name="text", value="short"), text="short")
    assert scene.run().fields == {**FIELDS, "text": "short"}


def test_a_change_that_replaces_what_the_run_has_not_read_contradicts_it(scene: Scene) -> None:
    scene.start(fields=FIELDS)
    token = scene.hold()
    with pytest.raises(InvalidCommit, match="'text'"):
        _commit(scene, token, Replaced(name="text", value="short"))
    assert scene.run().fields == FIELDS
