"""A parent sees what the children of its pool hold."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from docket_celery.renewal import Held
from docket_celery.worker import standing_in
from docket_celery.worker.standing_in import PoolLedger, place_of_this_process


def a_child(monkeypatch: pytest.MonkeyPatch, index: int) -> None:
    """From now on this process is the child of a pool."""
    monkeypatch.setattr(standing_in, "current_process", lambda: SimpleNamespace(index=index))


def test_only_the_child_of_a_pool_has_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    assert place_of_this_process() is None
    a_child(monkeypatch, 3)
    assert place_of_this_process() == 3


def test_the_parent_sees_what_a_child_holds_and_how_its_times_move(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = PoolLedger()
    ledger = shared.share(2)
    held = Held("run-1", "ours", 100.0)
    pid = os.fork()
    if pid == 0:
        a_child(monkeypatch, 1)
        shared.show(held)
        held.until = 200.0
        os._exit(0)
    os.waitpid(pid, 0)
    (entry,) = ledger.entries()
    assert entry.holder.pid == pid
    assert (entry.held.run_id, entry.held.token, entry.held.until) == ("run-1", "ours", 200.0)


def test_a_claim_is_shown_for_as_long_as_it_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    a_child(monkeypatch, 0)
    shared = PoolLedger()
    ledger = shared.share(1)
    for run_id in ("run-1", "run-2"):
        held = Held(run_id, "ours", 100.0)
        shared.show(held)
        assert [entry.held.run_id for entry in ledger.entries()] == [run_id]
        shared.hide(held)
        assert ledger.entries() == []


def test_a_second_claim_of_the_same_process_does_not_hide_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    a_child(monkeypatch, 0)
    shared = PoolLedger()
    ledger = shared.share(1)
    shared.show(Held("run-1", "ours", 100.0))
    inner = Held("run-2", "ours", 100.0)
    shared.show(inner)
    shared.hide(inner)
    assert [entry.held.run_id for entry in ledger.entries()] == ["run-1"]


@pytest.mark.parametrize("index", [1, 7])
def test_a_child_beyond_the_maximum_of_the_pool_is_not_shown(monkeypatch: pytest.MonkeyPatch, index: int) -> None:
    a_child(monkeypatch, index)
    shared = PoolLedger()
    ledger = shared.share(1)
    held = Held("run-1", "ours", 100.0)
    shared.show(held)
    shared.hide(held)
    assert ledger.entries() == []


def test_without_shared_memory_or_outside_a_pool_nothing_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held("run-1", "ours", 100.0)
    shared = PoolLedger()
    ledger = shared.share(1)
    shared.show(held)
    assert ledger.entries() == []
    a_child(monkeypatch, 0)
    PoolLedger().show(held)


def test_where_processes_cannot_be_told_apart_nothing_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    a_child(monkeypatch, 0)
    monkeypatch.setattr(standing_in, "this_process", lambda: None)
    shared = PoolLedger()
    ledger = shared.share(1)
    shared.show(Held("run-1", "ours", 100.0))
    assert ledger.entries() == []
