"""The plans that sessions keep for the store's statements."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.sql import SQL, Composed, Identifier, Literal

from docket_celery.storage.postgres.queries import Queries

_TYPED = re.compile(r"\$(\d+)::(\w+(?:\[\])?)")


def explained(
    connection: psycopg.Connection[Any], name: str, mode: str, parameters: Mapping[str, Any]
) -> dict[str, Any]:
    """The plan of a statement, under this `plan_cache_mode`, that was carried out and undone."""
    connection.execute(f"SET plan_cache_mode = {mode}".encode())
    with connection.transaction(force_rollback=True), prepared(connection, name):
        explain = SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) ")
        row = connection.execute(explain + execution(name, parameters)).fetchone()
    assert row is not None
    plan: dict[str, Any] = row["QUERY PLAN"][0]["Plan"]
    return plan


@contextmanager
def prepared(connection: psycopg.Connection[Any], name: str) -> Iterator[None]:
    """The statement, prepared under its name. Only so is it the kept plan that is explained."""
    statement = Queries("docket").numbered(name)
    types = dict(_TYPED.findall(statement.text.decode()))
    given = ", ".join(types[str(number)] for number in range(1, len(statement.names) + 1))
    head = f"PREPARE {name}({given}) AS " if given else f"PREPARE {name} AS "
    connection.execute(head.encode() + statement.text)
    try:
        yield
    finally:
        connection.execute(f"DEALLOCATE {name}".encode())


def execution(name: str, parameters: Mapping[str, Any]) -> Composed:
    """NULL for what is not among the parameters."""
    values = [Literal(parameters.get(parameter)) for parameter in Queries("docket").numbered(name).names]
    arguments = SQL("({})").format(SQL(", ").join(values)) if values else SQL("")
    return SQL("EXECUTE {}").format(Identifier(name)) + arguments
