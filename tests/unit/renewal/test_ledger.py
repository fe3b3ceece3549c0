"""What a process holds can be read from elsewhere, and is no more than a hint."""

from __future__ import annotations

import pytest

from docket_celery.renewal import GRACE, Held, Holder, Ledger

CHILD = Holder(pid=17, born=4_711)


def a_ledger(places: int = 2) -> Ledger:
    return Ledger(bytearray(Ledger.size(places)))


def a_claim(run_id: str = "run-1", token: str = "ours", *, until: float = 100.0, renewed_at: float = 5.0) -> Held:
    held = Held(run_id, token, until)
    held.renewed_at = renewed_at
    return held


def test_a_new_ledger_shows_nothing() -> None:
    assert a_ledger(3).places == 3
    assert a_ledger(3).entries() == []


@pytest.mark.parametrize("length", [1, 255])
def test_a_claim_is_read_as_it_was_written(length: int) -> None:
    ledger = a_ledger()
    ledger.write(1, CHILD, a_claim("r" * length, "t" * length))
    (entry,) = ledger.entries()
    assert entry.holder == CHILD
    assert (entry.held.run_id, entry.held.token) == ("r" * length, "t" * length)
    assert (entry.held.until, entry.held.renewed_at) == (100.0, 5.0)


def test_what_the_holder_sets_is_seen_at_once_and_so_is_what_the_reader_sets() -> None:
    ledger, held = a_ledger(), a_claim()
    ledger.write(0, CHILD, held)
    (entry,) = ledger.entries()
    held.until = 300.0
    entry.held.renewed_at = 20.0
    assert (entry.held.until, held.renewed_at) == (300.0, 20.0)


def test_a_claim_that_is_cleared_goes_on_by_itself_and_does_not_touch_the_next_one_in_its_place() -> None:
    ledger, first, second = a_ledger(), a_claim("run-1"), a_claim("run-2", until=200.0)
    ledger.write(0, CHILD, first)
    ledger.clear(0, first)
    assert ledger.entries() == []
    ledger.write(0, CHILD, second)
    first.until = first.renewed_at = 9.0
    assert (first.until, second.until, second.renewed_at) == (9.0, 200.0, 5.0)


def test_an_entry_that_is_half_written_is_none() -> None:
    buffer = bytearray(Ledger.size(1))
    ledger = Ledger(buffer)
    ledger.write(0, CHILD, a_claim("short", "token"))
    longer = bytearray(Ledger.size(1))
    Ledger(longer).write(0, CHILD, a_claim("a-longer-id", "token"))
    length = buffer.index(b"short") - 1
    buffer[length] = longer[length]  # The length is there already, the letters are not.
    assert ledger.entries() == []


def test_places_are_each_others_strangers() -> None:
    ledger = a_ledger()
    first, second = a_claim("run-1"), a_claim("run-2")
    ledger.write(0, CHILD, first)
    ledger.write(1, Holder(pid=18, born=1), second)
    ledger.clear(0, first)
    assert [entry.held.run_id for entry in ledger.entries()] == ["run-2"]


def test_a_place_that_is_half_written_is_read_without_an_error() -> None:
    memory = bytearray(Ledger.size(1))
    ledger = Ledger(memory)
    ledger.write(0, CHILD, a_claim("läuft", "tökén"))
    for cut in range(len(memory)):
        torn = bytearray(memory)
        torn[cut:] = b"\xff" * (len(torn) - cut)
        (entry,) = Ledger(torn).entries()
        assert isinstance(entry.held.is_overdue(0.0), bool)


def test_a_vehicle_is_overdue_only_after_a_grace() -> None:
    held = a_claim(until=100.0)
    assert not held.is_overdue(100.0 + GRACE - 0.1)
    assert held.is_overdue(100.0 + GRACE)
