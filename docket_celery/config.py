"""Options, checked once and for all where they enter: a `Config` that exists is valid.

Built from the keys that begin with `docket_` in a Celery app's configuration, seen here as a plain mapping.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal

from docket_celery.errors import ConfigError, shown

PREFIX: Final = "docket_"


def _option(default: Any, check: Callable[[str, Any], Any]) -> Any:
    return field(default=default, metadata={"check": check})


def _text(*, pattern: str | None = None, optional: bool = False) -> Callable[[str, Any], Any]:
    def check(key: str, value: Any) -> Any:
        if value is None and optional:
            return None
        if not isinstance(value, str) or not value:
            raise ConfigError(f"{key} must be a non-empty string, got {shown(value)}")
        if pattern is not None and not re.fullmatch(pattern, value):
            raise ConfigError(f"{key} must match {pattern}, got {shown(value)}")
        return value

    return check


def _seconds(low: float, high: float = 10 * 365 * 86_400.0, *, optional: bool = False) -> Callable[[str, Any], Any]:
    def check(key: str, value: Any) -> Any:
        if value is None and optional:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{key} must be a number of seconds, got {shown(value)}")
        if not low <= value <= high:
            raise ConfigError(f"{key} must be from {low:g} to {high:g} seconds, got {shown(value)}")
        return float(value)

    return check


def _whole(low: int, high: int = 2**31 - 1, *, optional: bool = False) -> Callable[[str, Any], Any]:
    def check(key: str, value: Any) -> Any:
        if value is None and optional:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(f"{key} must be a whole number, got {shown(value)}")
        if not low <= value <= high:
            raise ConfigError(f"{key} must be from {low} to {high}, got {shown(value)}")
        return value

    return check


def _choice(*allowed: Any) -> Callable[[str, Any], Any]:
    def check(key: str, value: Any) -> Any:
        if not any(value is choice or (value == choice and type(value) is type(choice)) for choice in allowed):
            raise ConfigError(f"{key} must be one of {', '.join(map(repr, allowed))}, got {shown(value)}")
        return value

    return check


def _in_flight(key: str, value: Any) -> Any:
    return value if value == "auto" else _whole(1)(key, value)


def _names(key: str, value: Any) -> Any:
    if value is None:
        return None
    iterable = isinstance(value, Iterable) and not isinstance(value, str)
    if not iterable or not all(isinstance(name, str) and name for name in value):
        raise ConfigError(f"{key} must be a sequence of module names, got {shown(value)}")
    return tuple(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Every option of one app. Times are seconds, sizes bytes; each key is `docket_` and the name here."""

    database_url: str | None = _option(None, _text(optional=True))
    schema: str = _option("docket", _text(pattern=r"[^\x00]{1,63}"))
    queue: str = _option("docket", _text(pattern=r"[A-Za-z0-9_.:-]{1,100}"))
    poll_interval: int = _option(1, _whole(1, 3_600))
    refill: str = _option("direct", _choice("direct", "broker"))
    max_in_flight: int | Literal["auto"] = _option("auto", _in_flight)
    orphan_ttl: float = _option(60.0, _seconds(1.0))
    max_claim_attempts: int = _option(3, _whole(1))
    max_claim_abandons: int = _option(5, _whole(1))
    abandon_backoff: float = _option(30.0, _seconds(0.001))
    abandon_backoff_cap: float = _option(3_600.0, _seconds(0.001))
    max_attempt_elapsed: float = _option(300.0, _seconds(0.001))
    lease_renewal: bool = _option(True, _choice(True, False))
    drain_max_moments: int | None = _option(None, _whole(1, optional=True))
    drain_max_elapsed: float | None = _option(30.0, _seconds(0.001, optional=True))
    vehicle_max_elapsed: float = _option(300.0, _seconds(0.001, 7 * 86_400.0))
    node_modules: tuple[str, ...] | None = _option(None, _names)
    max_supersteps: int | None = _option(None, _whole(1, optional=True))
    tenant_mode: str = _option("none", _choice("none", "required"))
    claim_policy: Literal["age", "tenants"] | None = _option(None, _choice(None, "age", "tenants"))
    """None becomes "tenants" where tenants are required, otherwise "age"."""
    tenant_cap: int | None = _option(None, _whole(1, optional=True))
    run_retention: float | None = _option(None, _seconds(1.0, optional=True))
    event_retention: float | None = _option(None, _seconds(1.0, optional=True))
    prune_interval: int = _option(300, _whole(1, 7 * 86_400))
    max_value_bytes: int = _option(16 * 1024 * 1024, _whole(1_024, 256 * 1024 * 1024))
    install_beat: bool = _option(True, _choice(True, False))
    tick: Literal["beat", "worker"] = _option("beat", _choice("beat", "worker"))
    listen: bool = _option(False, _choice(True, False))

    def __post_init__(self) -> None:
        for option in fields(self):
            key = PREFIX + option.name
            object.__setattr__(self, option.name, option.metadata["check"](key, getattr(self, option.name)))
        self._settle_claim_policy()
        if self.abandon_backoff_cap < self.abandon_backoff:
            raise ConfigError(
                f"docket_abandon_backoff_cap ({self.abandon_backoff_cap:g} s) must be at least "
                f"docket_abandon_backoff ({self.abandon_backoff:g} s)"
            )
        if not self.lease_renewal and self.max_attempt_elapsed + ATTEMPT_MARGIN >= self.orphan_ttl * 2 / 3:
            raise ConfigError(
                f"with docket_lease_renewal off, docket_max_attempt_elapsed ({self.max_attempt_elapsed:g} s) plus "
                f"a margin of {ATTEMPT_MARGIN:g} s must stay below two thirds of docket_orphan_ttl "
                f"({self.orphan_ttl:g} s): a healthy lease could be taken for lost"
            )

    def _settle_claim_policy(self) -> None:
        if self.claim_policy is None:
            object.__setattr__(self, "claim_policy", "tenants" if self.tenant_mode == "required" else "age")
        if self.claim_policy == "age" and self.tenant_mode == "required":
            raise ConfigError(
                "docket_claim_policy must be 'tenants' with docket_tenant_mode = 'required', got 'age': one tenant's "
                "backlog would keep all others waiting"
            )
        if self.tenant_cap is not None and self.claim_policy == "age":
            raise ConfigError(
                f"docket_tenant_cap ({self.tenant_cap}) needs docket_claim_policy = 'tenants'; it is 'age' here"
            )

    @property
    def tick_queue(self) -> str:
        """The queue of ticks: apart from that of leases and nudges, so that neither stands behind the other."""
        return f"{self.queue}.ticks"

    @classmethod
    def from_mapping(cls, settings: Mapping[str, Any]) -> Config:
        """Reads the `docket_` keys of a configuration; an unknown one is refused with the nearest name."""
        known = {PREFIX + option.name: option.name for option in fields(cls)}
        given = {key: value for key, value in settings.items() if key.startswith(PREFIX)}
        for key in sorted(given):
            if key not in known:
                nearest = difflib.get_close_matches(key, known, n=1)
                hint = f"; did you mean {nearest[0]}?" if nearest else ""
                raise ConfigError(f"unknown option {key}{hint}")
        return cls(**{known[key]: value for key, value in given.items()})


ATTEMPT_MARGIN: Final = 1.0
"""Seconds a commit may take on top of an attempt, when nothing renews the claim meanwhile."""
