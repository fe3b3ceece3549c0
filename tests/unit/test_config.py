"""Options are valid once constructed, and errors name the key, the bound and the value."""

from __future__ import annotations

from typing import Any

import pytest

from docket_celery.config import Config
from docket_celery.errors import ConfigError


def test_every_option_but_the_database_has_a_default() -> None:
    config = Config.from_mapping({"docket_database_url": "postgresql://localhost/proj", "broker_url": "redis://"})
    assert config.database_url == "postgresql://localhost/proj"
    assert config.tick_queue == "docket.ticks"


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"docket_orphan_tll": 5}, ["docket_orphan_tll", "did you mean docket_orphan_ttl"]),
        ({"docket_poll_interval": 0}, ["docket_poll_interval", "from 1 to 3600", "0"]),
        ({"docket_poll_interval": 0.5}, ["docket_poll_interval", "whole number", "0.5"]),
        ({"docket_orphan_ttl": "60"}, ["docket_orphan_ttl", "seconds", "'60'"]),
        ({"docket_orphan_ttl": float("nan")}, ["docket_orphan_ttl", "nan"]),
        ({"docket_orphan_ttl": 10**400}, ["docket_orphan_ttl", "from 1 to", "1000000"]),
        ({"docket_poll_interval": 10**5_000}, ["docket_poll_interval", "from 1 to 3600", "cannot be shown"]),
        ({"docket_node_modules": 5}, ["docket_node_modules", "sequence", "5"]),
        ({"docket_refill": "sometimes"}, ["docket_refill", "'direct'", "'sometimes'"]),
        ({"docket_max_in_flight": "many"}, ["docket_max_in_flight", "'many'"]),
        ({"docket_install_beat": 1}, ["docket_install_beat", "True", "1"]),
        ({"docket_node_modules": "proj.graphs"}, ["docket_node_modules", "sequence"]),
        (
            {"docket_abandon_backoff": 60, "docket_abandon_backoff_cap": 30},
            ["docket_abandon_backoff_cap (30 s)", "docket_abandon_backoff (60 s)"],
        ),
        ({"docket_claim_policy": "fair"}, ["docket_claim_policy", "'age', 'tenants'", "'fair'"]),
        (
            {"docket_claim_policy": "age", "docket_tenant_mode": "required"},
            ["docket_claim_policy", "'tenants'", "docket_tenant_mode = 'required'", "'age'"],
        ),
        ({"docket_tenant_cap": 0, "docket_claim_policy": "tenants"}, ["docket_tenant_cap", "1", "0"]),
        ({"docket_tenant_cap": 5}, ["docket_tenant_cap (5)", "docket_claim_policy = 'tenants'", "'age'"]),
        (
            {"docket_lease_renewal": False, "docket_max_attempt_elapsed": 6, "docket_orphan_ttl": 3},
            ["docket_max_attempt_elapsed (6 s)", "docket_orphan_ttl (3 s)"],
        ),
    ],
)
def test_a_wrong_option_is_refused_by_name_bound_and_value(settings: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        Config.from_mapping(settings)
    assert all(part in str(refused.value) for part in parts)


@pytest.mark.parametrize(("tenant_mode", "policy"), [("none", "age"), ("required", "tenants")])
def test_the_claim_policy_follows_the_tenant_mode(tenant_mode: str, policy: str) -> None:
    assert Config.from_mapping({"docket_tenant_mode": tenant_mode}).claim_policy == policy


def test_tenants_may_take_turns_where_they_are_not_required() -> None:
    config = Config.from_mapping({"docket_claim_policy": "tenants", "docket_tenant_cap": 5})
    assert (config.claim_policy, config.tenant_cap) == ("tenants", 5)
