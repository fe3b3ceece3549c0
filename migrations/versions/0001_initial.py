"""The first schema. The statements are in the `.sql` files beside this module."""

from __future__ import annotations

from pathlib import Path

from alembic import context, op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    _execute("0001_initial.sql")


def downgrade() -> None:
    _execute("0001_initial.down.sql")


def _execute(name: str) -> None:
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    op.execute(text.replace("{schema}", context.config.attributes["quoted_schema"]))
