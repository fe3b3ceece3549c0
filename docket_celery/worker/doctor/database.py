"""Checks of the database: that it is there, fits, and is kept in order."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from docket_celery.worker.doctor.facts import Check, Facts, Finding

LONG_OPEN: Final = timedelta(minutes=10)
"""Dead versions of rows that stay for so long begin to cost something."""


def database(facts: Facts) -> Finding | None:
    if facts.database is None:
        return Finding(check="database", verdict="fine", seen="reachable")
    advice = "Start PostgreSQL, or correct docket_database_url. Runs wait; none is lost."
    return Finding(check="database", verdict="problem", seen=facts.database, advice=advice)


def schema(facts: Facts) -> Finding | None:
    if facts.database is not None:
        return None
    if facts.schema is None:
        return Finding(check="schema", verdict="fine", seen=f"{facts.config.schema!r} fits this release")
    advice = "Run `celery -A proj docket migrate` with the newest release that is in use."
    return Finding(check="schema", verdict="problem", seen=facts.schema, advice=advice)


def triggers(facts: Facts) -> Finding | None:
    if facts.upkeep is None:
        return None
    idle = facts.upkeep.idle_triggers
    if not idle:
        return Finding(check="triggers", verdict="fine", seen="all of them fire")
    return Finding(
        check="triggers",
        verdict="problem",
        seen=f"{', '.join(idle)}: disabled, or not enabled for every session",
        advice=f"`ALTER TABLE {facts.config.schema}.runs ENABLE ALWAYS TRIGGER NAME` for each. A restore with "
        "--disable-triggers leaves them so; until then not every session refuses a row that no run may have.",
    )


def indexes(facts: Facts) -> Finding | None:
    if facts.upkeep is None:
        return None
    invalid = facts.upkeep.invalid_indexes
    if not invalid:
        return Finding(check="indexes", verdict="fine", seen="all of them are valid")
    return Finding(
        check="indexes",
        verdict="warning",
        seen=f"{', '.join(invalid)}: kept up by every write, used by no query",
        advice="A rebuild was interrupted. `DROP INDEX CONCURRENTLY` for what ends in _ccnew or _ccold, "
        "`REINDEX INDEX CONCURRENTLY` for others.",
    )


def transactions(facts: Facts) -> Finding | None:
    if facts.upkeep is None:
        return None
    open_for, who = facts.upkeep.oldest_transaction_age, facts.upkeep.oldest_transaction
    if open_for is None or open_for <= LONG_OPEN:
        return Finding(check="open transactions", verdict="fine", seen=f"none for longer than {LONG_OPEN}")
    return Finding(
        check="open transactions",
        verdict="warning",
        seen=f"{who} has had one open for {open_for}",
        advice="Nothing that died since can be vacuumed, and tables and indexes grow. End it if it was forgotten: "
        "`SELECT pg_terminate_backend(PID)`, or `ROLLBACK PREPARED`.",
    )


CHECKS: Final[tuple[Check, ...]] = (database, schema, triggers, indexes, transactions)
