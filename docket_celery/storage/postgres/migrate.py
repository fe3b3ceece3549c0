"""Brings the schema up, through Alembic. Never on a hot path: Alembic and SQLAlchemy load inside the functions.

A migration has a connection of its own and is one transaction: it holds an advisory lock, so that of several processes
that migrate at once one works and the others find it done; killed in the middle, it leaves nothing behind.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import errors

import docket_celery
from docket_celery.errors import SchemaMismatch, StoreUnavailable
from docket_celery.storage.postgres.locks import advisory_key
from docket_celery.storage.postgres.queries import quote
from docket_celery.storage.postgres.sessions import CONNECT_TIMEOUT, ENCODING, describe

if TYPE_CHECKING:
    from alembic.config import Config

_LOCK_TIMEOUT: Final = "1s"
"""How long one statement of a migration may wait, and with it everybody who queues behind it."""
_PATIENCE: Final = 60.0
"""Seconds for which a migration that could not get its locks is tried again."""
_PAUSE: Final = 0.5
_SCHEMA_IS_THERE: Final = "SELECT 1 FROM pg_namespace WHERE nspname = %(schema)s"
_COMMAND: Final = "run `celery -A proj docket migrate`"


def upgrade(url: str, schema: str = "docket") -> None:
    """Makes the schema and brings it to this release's version. Doing it again changes nothing."""
    from alembic import command

    _migrate(url, schema, lambda config: command.upgrade(config, "head"))


def downgrade(url: str, schema: str = "docket", *, revision: str = "base") -> None:
    """Takes the schema back to `revision`; `base` drops all of this package's tables and what is in them."""
    from alembic import command

    _migrate(url, schema, lambda config: command.downgrade(config, revision))


def sql(schema: str = "docket") -> str:
    """The script that `upgrade` would run on an empty database."""
    from alembic import command

    script = StringIO()
    command.upgrade(_config(schema, output_buffer=script), "head", sql=True)
    return script.getvalue()


def check(url: str, schema: str = "docket") -> None:
    """Raises `SchemaMismatch` unless the schema has exactly this release's version."""
    wanted = newest_version()
    stored = _stored_version(url, schema)
    if stored == wanted:
        return
    if stored is None:
        raise SchemaMismatch(
            f"schema {schema!r} of {describe(url)} has not been made; this release needs version {wanted}: {_COMMAND}"
        )
    cure = _COMMAND if stored < wanted else "install a newer release of docket-celery"
    raise SchemaMismatch(
        f"schema {schema!r} of {describe(url)} has version {stored}; this release needs version {wanted}: {cure}"
    )


def newest_version() -> str:
    """This release's version: that of the last migration, by the names of the files. Each worker asks for it at its
    start, where Alembic would cost more than all the rest and fill the log.
    """
    return max(script.name for script in (_scripts() / "versions").glob("*_*.py")).partition("_")[0]


def _stored_version(url: str, schema: str) -> str | None:
    table = f"{quote(schema)}.alembic_version"
    try:
        with _connect(url) as connection:
            row = connection.execute(f"SELECT version_num FROM {table}".encode()).fetchone()
    except (errors.UndefinedTable, errors.InvalidSchemaName):
        return None
    except psycopg.Error as error:
        raise StoreUnavailable(f"PostgreSQL at {describe(url)}: {error}") from error
    return None if row is None else str(row[0])


def _migrate(url: str, schema: str, run: Callable[[Config], None]) -> None:
    """Runs a migration until it gets its locks. It waits briefly each time: who queues behind it waits as long."""
    from alembic.util import CommandError

    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            _attempt(url, schema, run)
        except errors.LockNotAvailable as error:
            if time.monotonic() > deadline:
                raise StoreUnavailable(
                    f"schema {schema!r} of {describe(url)}: its tables stayed locked for {_PATIENCE:g} s"
                ) from error
            time.sleep(_PAUSE)
        except CommandError as error:
            raise SchemaMismatch(
                f"schema {schema!r} of {describe(url)} cannot be migrated by this release: {error}; "
                "install a newer release of docket-celery"
            ) from error
        except psycopg.Error as error:
            raise StoreUnavailable(f"PostgreSQL at {describe(url)}: {error}") from error
        else:
            return


def _attempt(url: str, schema: str, run: Callable[[Config], None]) -> None:
    from sqlalchemy import create_engine
    from sqlalchemy.exc import DBAPIError
    from sqlalchemy.pool import NullPool

    engine = create_engine("postgresql+psycopg://", creator=lambda: _connect(url), poolclass=NullPool)
    try:
        with engine.begin() as connection:
            # Waiting for another migration is not bounded by the lock timeout, which begins afterwards.
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({advisory_key('migrate', schema)})")
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
            # To ask for a schema that is there already would take a right on the database that its owner may not have.
            if connection.exec_driver_sql(_SCHEMA_IS_THERE, {"schema": schema}).first() is None:
                connection.exec_driver_sql(f"CREATE SCHEMA {quote(schema)}")
            run(_config(schema, connection=connection))
    except DBAPIError as error:
        raise error.orig if error.orig is not None else error from error


def _config(schema: str, *, output_buffer: StringIO | None = None, **attributes: Any) -> Config:
    from alembic.config import Config

    config = Config(output_buffer=output_buffer) if output_buffer is not None else Config()
    config.set_main_option("script_location", str(_scripts()).replace("%", "%%"))
    config.attributes.update(schema=schema, quoted_schema=quote(schema), **attributes)
    return config


def _scripts() -> Path:
    """The migrations: inside the package when it was installed from a wheel, beside it in a checkout."""
    package = Path(docket_celery.__file__).parent
    installed = package / "migrations"
    return installed if installed.is_dir() else package.parent / "migrations"


def _connect(url: str) -> psycopg.Connection[Any]:
    describe(url)
    return psycopg.connect(url, connect_timeout=CONNECT_TIMEOUT, prepare_threshold=None, client_encoding=ENCODING)
