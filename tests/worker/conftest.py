"""What the tests of the Celery package share: an app over a migrated database, and a directory to call `celery` in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.apps import Shell, a_docket

from docket_celery import Docket
from docket_celery.embedded.postgres import EmbeddedPostgres

Count = Callable[[], dict[str, int]]


@pytest.fixture(scope="module")
def database_url(postgres_server: EmbeddedPostgres, postgres_template: str, request: pytest.FixtureRequest) -> str:
    """A migrated database for all tests of a module."""
    return postgres_server.create_database(request.module.__name__.lower(), template=postgres_template)


@pytest.fixture(scope="module")
def docket(database_url: str) -> Docket:
    """Docket over the module's database; its broker is down."""
    return a_docket(database_url)


@pytest.fixture
def stored(database_url: str) -> Iterator[Count]:
    """How many rows each table of runs and graphs has now."""
    with psycopg.connect(database_url, autocommit=True) as connection:

        def count() -> dict[str, int]:
            tables = ("graph_versions", "runs", "run_fields", "run_events")
            return {table: _rows(connection, table) for table in tables}

        yield count


def _rows(connection: psycopg.Connection[Any], table: str) -> int:
    row = connection.execute(f"SELECT count(*) FROM docket.{table}".encode()).fetchone()
    assert row is not None
    return int(row[0])


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)
