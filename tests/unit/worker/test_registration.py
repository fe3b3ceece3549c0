"""A registration kept from its own thread: the last wish wins, and nobody waits for a database that hangs."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from support.clock import eventually

from docket_celery.worker.registration import Registration

FOREVER = 30.0


class Database:
    """Remembers what it was told; while the gate is closed it hangs."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.asked: list[str] = []
        self.gate = threading.Event()
        self.gate.set()

    def register(self) -> None:
        self._do("register")

    def unregister(self) -> None:
        self._do("unregister")

    def _do(self, what: str) -> None:
        self.asked.append(what)
        self.gate.wait(FOREVER)
        self.told.append(what)


@pytest.fixture
def database() -> Iterator[Database]:
    database = Database()
    yield database
    database.gate.set()


@pytest.fixture
def kept(database: Database) -> Registration:
    return Registration(database.register, database.unregister)


def begun(database: Database, kept: Registration) -> None:
    """Returns while the database hangs with the first registration."""
    kept.begin(patience=0.01)
    eventually(lambda: database.asked == ["register"])


def test_begin_returns_registered_and_end_unregistered(database: Database, kept: Registration) -> None:
    kept.begin(patience=FOREVER)
    assert database.told == ["register"]
    thread = kept._thread
    assert thread is not None
    kept.end(patience=FOREVER)
    assert database.told == ["register", "unregister"]
    assert (kept._thread, thread.is_alive()) == (None, False)


def test_it_is_renewed_when_asked_and_at_no_other_time(database: Database, kept: Registration) -> None:
    kept.begin(patience=FOREVER)
    kept.ask()
    eventually(lambda: database.told == ["register"] * 2)
    kept.end(patience=FOREVER)
    assert database.told == ["register", "register", "unregister"]


def test_renewals_that_were_asked_for_while_it_hung_are_one(database: Database, kept: Registration) -> None:
    database.gate.clear()
    begun(database, kept)
    for _ in range(10):
        kept.ask()
    database.gate.set()
    eventually(lambda: database.told == ["register"] * 2)
    kept.end(patience=FOREVER)
    assert database.told == ["register", "register", "unregister"]


def test_a_database_that_hangs_holds_up_neither_begin_nor_end(database: Database, kept: Registration) -> None:
    database.gate.clear()
    begun(database, kept)
    kept.end(patience=0.01)
    assert (database.asked, database.told) == (["register"], [])
    database.gate.set()
    eventually(lambda: database.told == ["register", "unregister"])


def test_a_new_beginning_is_not_undone_by_an_end_that_hung(database: Database, kept: Registration) -> None:
    kept.begin(patience=FOREVER)
    database.gate.clear()
    kept.end(patience=0.01)
    eventually(lambda: database.asked == ["register", "unregister"])
    kept.begin(patience=0.01)
    database.gate.set()
    eventually(lambda: database.told == ["register", "unregister", "register"])
    kept.end(patience=FOREVER)


def test_an_end_and_a_beginning_while_it_hangs_leave_it_registered(database: Database, kept: Registration) -> None:
    database.gate.clear()
    begun(database, kept)
    kept.end(patience=0.01)
    kept.begin(patience=0.01)
    database.gate.set()
    eventually(lambda: database.told == ["register", "register"])
    kept.end(patience=FOREVER)
    assert database.told == ["register", "register", "unregister"]
