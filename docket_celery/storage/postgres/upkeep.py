"""Looks over a database for what an administrator may have left behind. Changes nothing."""

from __future__ import annotations

import contextlib

from docket_celery.storage.contracts.upkeep import Upkeep
from docket_celery.storage.postgres.database import Database


def upkeep(url: str, *, schema: str) -> Upkeep:
    """What the catalog and the server's sessions show, on a connection of its own. Raises `StoreUnavailable`."""
    database = Database(url, schema=schema, max_connections=1)
    with contextlib.closing(database.sessions):
        (row,) = database.read("upkeep", {"schema": schema}, prepare=False)
    return Upkeep(
        idle_triggers=tuple(row["idle_triggers"]),
        invalid_indexes=tuple(row["invalid_indexes"]),
        oldest_transaction=row["oldest_transaction"],
        oldest_transaction_age=row["oldest_transaction_age"],
    )
