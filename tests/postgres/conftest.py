"""What the PostgreSQL-only tests share: a store on a database of one's own, and a plain connection beside it."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg.rows import dict_row
from support.scene import Scene

from docket_celery.storage.postgres import mutations, open_storage
from docket_celery.testing import ManualClock, SequentialIds


@pytest.fixture
def beside(postgres_url: str) -> Iterator[psycopg.Connection]:
    """An autocommitting connection to the same database, for looking and for interfering."""
    with psycopg.connect(postgres_url, autocommit=True, row_factory=dict_row) as connection:
        connection.execute("SET search_path = docket")
        yield connection


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutation waits for a lock, and holds one, for as long as the test needs."""
    monkeypatch.setattr(mutations, "_LOCK_TIMEOUT", "60s")
    monkeypatch.setattr(mutations, "_IDLE_TIMEOUT", "60s")


@pytest.fixture
def place(postgres_url: str, clock: ManualClock, ids: SequentialIds) -> Scene:
    """A PostgreSQL store of its own, bound to the manual clock."""
    return Scene(open_storage(postgres_url, now=clock.now), clock, ids)
