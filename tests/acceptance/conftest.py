"""Fixtures for acceptance: a broker, and a fleet over a migrated PostgreSQL database of the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from fleet import Fleet
from support.brokers import RABBITMQ_PROGRAM, Broker, RabbitMQ

from docket_celery.embedded.redis import EmbeddedRedis


@pytest.fixture
def settings() -> dict[str, Any]:
    """The options of the test's fleet; a module or test overrides this fixture."""
    return {"docket_orphan_ttl": 3, "docket_max_attempt_elapsed": 120, "docket_poll_interval": 1}


@pytest.fixture
def broker(pytestconfig: pytest.Config, tmp_path: Path) -> Iterator[Broker]:
    """The broker that `--broker` names, empty and of the test's own."""
    if pytestconfig.getoption("--broker") == "rabbitmq":
        assert RABBITMQ_PROGRAM.exists(), f"--broker rabbitmq needs {RABBITMQ_PROGRAM}"
        with RabbitMQ(tmp_path / "rabbitmq") as rabbitmq:
            yield rabbitmq
    else:
        with EmbeddedRedis.start(tmp_path / "redis") as redis:
            yield redis


@pytest.fixture
def fleet(
    postgres_url: str, broker: Broker, tmp_path: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Fleet]:
    monkeypatch.setenv("PROJ_DATABASE_URL", postgres_url)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE probe (run_id text, node text, step int, attempt int, idempotency_key text, pid int,"
            " at timestamptz DEFAULT clock_timestamp())"
        )
        connection.execute("CREATE TABLE gate (name text PRIMARY KEY)")
    fleet = Fleet(postgres_url, broker, tmp_path, settings)
    try:
        yield fleet
    finally:
        fleet.stop()
