"""What an administrator may leave behind in a database is found in its catalog."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest

from docket_celery.storage.contracts.upkeep import Upkeep
from docket_celery.storage.postgres.upkeep import upkeep


def _upkeep(connection: psycopg.Connection) -> Upkeep:
    return upkeep(connection.info.dsn, schema="docket")


def test_a_schema_as_it_was_made_has_nothing_to_look_after(beside: psycopg.Connection) -> None:
    assert _upkeep(beside) == Upkeep(
        idle_triggers=(), invalid_indexes=(), oldest_transaction=None, oldest_transaction_age=None
    )


def test_what_a_restore_without_triggers_leaves_is_found(beside: psycopg.Connection) -> None:
    beside.execute("ALTER TABLE runs DISABLE TRIGGER ALL")
    assert _upkeep(beside).idle_triggers == ("runs_are_all_forgotten", "runs_are_forgotten", "runs_are_legal")
    beside.execute("ALTER TABLE runs ENABLE TRIGGER ALL")
    assert _upkeep(beside).idle_triggers == ("runs_are_legal",)
    beside.execute("ALTER TABLE runs ENABLE ALWAYS TRIGGER runs_are_legal")
    assert _upkeep(beside).idle_triggers == ()


def test_a_trigger_of_the_host_s_may_be_disabled(beside: psycopg.Connection) -> None:
    beside.execute(
        "CREATE TRIGGER theirs BEFORE UPDATE ON runs FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()"
    )
    beside.execute("ALTER TABLE runs DISABLE TRIGGER theirs")
    assert _upkeep(beside).idle_triggers == ()


def test_an_index_whose_building_failed_is_found(beside: psycopg.Connection) -> None:
    beside.execute(
        "INSERT INTO worker_slots (worker, slots, orphan_ttl, seen_at, expires_at)"
        " SELECT name, 1, '1 min', now(), now() FROM unnest('{a,b}'::text[]) AS name"
    )
    with pytest.raises(psycopg.errors.UniqueViolation):
        beside.execute("CREATE UNIQUE INDEX CONCURRENTLY one_size ON worker_slots (slots)")
    assert _upkeep(beside).invalid_indexes == ("one_size",)


def test_the_session_whose_transaction_is_open_longest_is_named(beside: psycopg.Connection) -> None:
    with (
        psycopg.connect(beside.info.dsn, application_name="report") as first,
        psycopg.connect(beside.info.dsn, application_name="later") as second,
    ):
        first.execute("SELECT")
        second.execute("SELECT")
        found = _upkeep(beside)
        assert found.oldest_transaction == f"session {first.info.backend_pid} of postgres (report)"
        assert found.oldest_transaction_age is not None
        assert found.oldest_transaction_age > timedelta()


def test_a_session_is_named_though_its_role_is_gone(beside: psycopg.Connection) -> None:
    beside.execute("CREATE ROLE leaver LOGIN")
    with psycopg.connect(beside.info.dsn, user="leaver", application_name="") as other:
        other.execute("SELECT")
        beside.execute("DROP ROLE leaver")
        assert _upkeep(beside).oldest_transaction == f"session {other.info.backend_pid} of "


def test_a_prepared_transaction_is_named_before_younger_sessions(beside: psycopg.Connection) -> None:
    with psycopg.connect(beside.info.dsn) as other:
        other.execute("SELECT pg_current_xact_id()")
        other.execute("PREPARE TRANSACTION 'forgotten'")
        try:
            other.execute("SELECT")
            assert _upkeep(beside).oldest_transaction == "prepared transaction 'forgotten' of postgres"
        finally:
            beside.execute("ROLLBACK PREPARED 'forgotten'")
