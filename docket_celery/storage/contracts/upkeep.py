"""What the store's database should be looked after for."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """What an administrator may have left behind.

    idle_triggers           names of the schema's triggers that do not fire whenever they should
    invalid_indexes         names of indexes that every write keeps up and no query uses
    oldest_transaction      who has held a transaction open for the longest, of those that this role may see; None if
                            nobody has one
    oldest_transaction_age  for how long
    """

    idle_triggers: tuple[str, ...]
    invalid_indexes: tuple[str, ...]
    oldest_transaction: str | None
    oldest_transaction_age: timedelta | None
