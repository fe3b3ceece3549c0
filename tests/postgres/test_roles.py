"""Roles without special rights: one that owns a schema it was given, and one that may only work with the rows."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import errors, sql
from psycopg.conninfo import make_conninfo

from docket_celery.client import TenantClient
from docket_celery.compiler.nodes import local_resolver
from docket_celery.config import Config
from docket_celery.engine import build
from docket_celery.errors import StoreUnavailable
from docket_celery.graph.document import Graph
from docket_celery.graph.elements import FINISH, START
from docket_celery.run.document import RunStatus
from docket_celery.storage.postgres import migrate, open_storage

SCHEMA = 'We"ird schema'
OWNER, WORKER = "schema_owner", "row_worker"


def greet(name: str) -> dict[str, str]:
    return {"greeting": f"Hello {name}"}


GRAPH = Graph("greeting").input("name", str).field("greeting", str).node("greet", greet)
GRAPH = GRAPH.edge(START, "greet").edge("greet", FINISH)


@pytest.fixture
def admin(empty_postgres_url: str) -> Iterator[psycopg.Connection]:
    """A superuser's connection to a database in which nobody else may make anything; both roles exist."""
    with psycopg.connect(empty_postgres_url, autocommit=True) as connection:
        connection.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        for role in (OWNER, WORKER):
            connection.execute(f"DROP ROLE IF EXISTS {role}".encode())
            connection.execute(f"CREATE ROLE {role} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE".encode())
        yield connection
        for role in (WORKER, OWNER):
            connection.execute(f"DROP OWNED BY {role} CASCADE".encode())
            connection.execute(f"DROP ROLE {role}".encode())


def _as(url: str, role: str) -> str:
    return make_conninfo(url, user=role)


def _client(url: str, schema: str) -> TenantClient:
    config = Config(schema=schema, run_retention=1.0, event_retention=1.0)
    return TenantClient(build(config, open_storage(url, schema=schema), local_resolver(GRAPH), pause=lambda _: None))


def _work(client: TenantClient) -> None:
    """Everything that a fleet does with its rows."""
    client.save_graph(GRAPH)
    done, cancelled = (client.start_run("greeting", {"name": "Ada"}, key=key) for key in ("a", "b"))
    client.cancel_run(cancelled.id)
    assert client.drain() == 1
    assert client.fetch_run(done.id).fields["greeting"] == "Hello Ada"
    assert [run.status for run in client.list_runs().runs] == [RunStatus.CANCELLED, RunStatus.DONE]
    assert client.list_events(done.id).events
    assert client.prune(graphs=True).runs == 0
    client.storage.fleet.backlog(orphan_ttl=client.engine.orphan_ttl)


def test_a_role_that_may_make_a_schema_makes_it_and_works(admin: psycopg.Connection, empty_postgres_url: str) -> None:
    database = sql.Identifier(admin.info.dbname)
    admin.execute(sql.SQL("GRANT CREATE ON DATABASE {} TO {}").format(database, sql.Identifier(OWNER)))
    migrate.upgrade(_as(empty_postgres_url, OWNER), SCHEMA)
    _work(_client(_as(empty_postgres_url, OWNER), SCHEMA))


def test_a_role_that_was_given_its_schema_needs_no_right_on_the_database(
    admin: psycopg.Connection, empty_postgres_url: str
) -> None:
    schema, owner = sql.Identifier(SCHEMA), sql.Identifier(OWNER)
    admin.execute(sql.SQL("CREATE SCHEMA {} AUTHORIZATION {}").format(schema, owner))
    url = _as(empty_postgres_url, OWNER)
    migrate.upgrade(url, SCHEMA)
    migrate.upgrade(url, SCHEMA)
    _work(_client(url, SCHEMA))
    migrate.downgrade(url, SCHEMA)


def test_a_worker_needs_only_to_read_and_change_rows(admin: psycopg.Connection, empty_postgres_url: str) -> None:
    migrate.upgrade(empty_postgres_url, SCHEMA)
    schema, worker = sql.Identifier(SCHEMA), sql.Identifier(WORKER)
    admin.execute(sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(schema, worker))
    granted = "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {} TO {}"
    admin.execute(sql.SQL(granted).format(schema, worker))
    url = _as(empty_postgres_url, WORKER)
    migrate.check(url, SCHEMA)
    _work(_client(url, SCHEMA))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.SQL("DELETE FROM {}.runs").format(schema))
        assert connection.execute(sql.SQL("SELECT FROM {}.run_events").format(schema)).fetchall() == []


def test_a_worker_works_where_new_functions_and_types_are_nobodys_by_default(
    admin: psycopg.Connection, empty_postgres_url: str
) -> None:
    admin.execute("ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC")
    admin.execute("ALTER DEFAULT PRIVILEGES REVOKE USAGE ON TYPES FROM PUBLIC")
    test_a_worker_needs_only_to_read_and_change_rows(admin, empty_postgres_url)


def test_a_role_without_rights_is_told_so(admin: psycopg.Connection, empty_postgres_url: str) -> None:
    migrate.upgrade(empty_postgres_url, SCHEMA)
    url = _as(empty_postgres_url, WORKER)
    with pytest.raises(StoreUnavailable, match="permission denied"):
        migrate.check(url, SCHEMA)
    with pytest.raises(StoreUnavailable, match="permission denied"):
        _client(url, SCHEMA).list_runs()


@pytest.mark.parametrize(
    ("function", "event"),
    [
        ("forget_runs", "AFTER DELETE ON mine REFERENCING OLD TABLE AS gone"),
        ("forget_all_runs", "AFTER TRUNCATE ON mine"),
    ],
)
def test_nobody_can_borrow_the_owners_rights_through_a_trigger_of_his_own(
    admin: psycopg.Connection, empty_postgres_url: str, function: str, event: str
) -> None:
    migrate.upgrade(empty_postgres_url, SCHEMA)
    schema, worker = sql.Identifier(SCHEMA), sql.Identifier(WORKER)
    admin.execute(sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(schema, worker))
    with psycopg.connect(_as(empty_postgres_url, WORKER), autocommit=True) as other:
        other.execute("CREATE TEMPORARY TABLE mine (id text)")
        with pytest.raises(errors.InsufficientPrivilege, match=function):
            other.execute(
                sql.SQL("CREATE TRIGGER t {} FOR EACH STATEMENT EXECUTE FUNCTION {}.{}()").format(
                    sql.SQL(event), schema, sql.SQL(function)
                )
            )
