"""What doctor can tell of an app's broker without asking it."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from docket_celery import Docket
from docket_celery.worker.examination import examine, transport_of


@pytest.mark.parametrize(
    ("url", "options", "told"),
    [
        ("redis://127.0.0.1:9/0", {}, ("redis", 10)),
        ("rediss://127.0.0.1:9/0", {}, ("redis", 10)),
        ("redis://127.0.0.1:9/0", {"max_connections": 100}, ("redis", 100)),
        ("redis://127.0.0.1:9/0", {"ack_emulation": False}, ("redis", None)),
        ("amqp://127.0.0.1:9//", {}, ("amqp", None)),
        ("memory://", {}, ("memory", None)),
        ("nosuchkind://", {}, (None, None)),
        ("a.kind.that.is.not.here://", {}, (None, None)),
    ],
)
def test_the_kind_of_broker_and_its_connections_for_acknowledgements_are_told(
    url: str, options: dict[str, Any], told: tuple[str | None, int | None]
) -> None:
    app = Celery("told", broker=url, set_as_current=False)
    app.conf.broker_transport_options = options
    assert transport_of(app) == told


def test_a_broker_of_a_kind_that_is_not_here_is_a_finding_and_no_error() -> None:
    app = Celery("wrong", broker="nosuchkind://", set_as_current=False)
    app.conf.docket_database_url = "postgresql://127.0.0.1:9/nowhere"
    facts = examine(Docket(app))
    assert facts.broker is not None
    assert "nosuchkind" in facts.broker
