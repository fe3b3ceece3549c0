"""How Alembic runs the migrations. `docket_celery.storage.postgres.migrate` calls it, never the `alembic` command.

It expects in the configuration's attributes: `schema`, `quoted_schema`, and `connection` unless the script is only
printed. The version table lives inside the schema, so that several installations can share a database.
"""

from __future__ import annotations

from alembic import context

attributes = context.config.attributes
options = {"version_table_schema": attributes["schema"], "target_metadata": None}

if context.is_offline_mode():
    context.configure(dialect_name="postgresql", **options)
    with context.begin_transaction():
        context.execute(f"CREATE SCHEMA IF NOT EXISTS {attributes['quoted_schema']}")
        context.run_migrations()
else:
    # The caller has begun the transaction, holds the lock in it and has made the schema.
    context.configure(connection=attributes["connection"], **options)
    context.run_migrations()
