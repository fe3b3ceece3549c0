"""The doctor's judgement: each check over facts made up for it, without any server."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from docket_celery.config import Config
from docket_celery.storage.contracts.fleet import Backlog, WorkerSlots
from docket_celery.storage.contracts.upkeep import Upkeep
from docket_celery.worker.doctor import Facts, Finding, diagnose

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
WELL = Backlog(
    now=NOW,
    due=0,
    oldest_due_at=None,
    next_wake_at=None,
    claimed=0,
    unredeemed=0,
    undelivered=0,
    poisoned=0,
    last_scan_at=NOW - timedelta(seconds=1),
    workers=(WorkerSlots(worker="w1", slots=2, orphan_ttl=timedelta(seconds=60), seen_at=NOW),),
)
KEPT = Upkeep(
    idle_triggers=(),
    invalid_indexes=(),
    oldest_transaction="session 7 of proj (report)",
    oldest_transaction_age=timedelta(minutes=10),
)
CROWD = (replace(WELL.workers[0], slots=11),)
FACTS = Facts(
    config=Config(database_url="postgresql://127.0.0.1/proj"),
    database=None,
    schema=None,
    broker=None,
    backlog=WELL,
    upkeep=KEPT,
    listener=None,
    prefetch_multiplier=1,
    prefetch_disabled=False,
    early_acknowledging=(),
    strays=(),
    routed=(),
    refused_content=None,
    transport="redis",
    longest_hold=750.0,
    ack_connections=10,
    is_green=False,
)


def _seconds_ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def _finding(check: str, *, config: dict[str, Any] | None = None, **facts: Any) -> Finding:
    """What one check says of facts that differ from those of a healthy fleet; `backlog` names only the differences."""
    if isinstance(facts.get("backlog"), dict):
        facts["backlog"] = replace(WELL, **facts["backlog"])
    if config is not None:
        facts["config"] = Config(**config)
    (found,) = [finding for finding in diagnose(replace(FACTS, **facts)) if finding.check == check]
    return found


def test_a_healthy_fleet_has_nothing_but_fine_findings() -> None:
    findings = diagnose(FACTS)
    assert {finding.verdict for finding in findings} == {"fine"}
    assert {finding.advice for finding in findings} == {""}
    assert [finding.check for finding in findings] == [
        "database",
        "schema",
        "triggers",
        "indexes",
        "open transactions",
        "broker",
        "workers",
        "orphan TTL",
        "ticks",
        "due runs",
        "leases",
        "poisoned runs",
        "prefetch",
        "host settings",
    ]


def test_without_a_database_the_checks_that_need_one_say_nothing() -> None:
    findings = diagnose(replace(FACTS, database="PostgreSQL at 127.0.0.1: refused", backlog=None, upkeep=None))
    assert [(finding.check, finding.verdict) for finding in findings] == [
        ("database", "problem"),
        ("broker", "fine"),
        ("prefetch", "fine"),
        ("host settings", "fine"),
    ]


@pytest.mark.parametrize(("check", "advice"), [("schema", "docket migrate"), ("broker", "Start the broker")])
def test_what_went_wrong_is_shown_with_what_to_do(check: str, advice: str) -> None:
    found = _finding(check, **{check: "what was heard"})
    assert (found.verdict, found.seen) == ("problem", "what was heard")
    assert advice in found.advice


@pytest.mark.parametrize(
    ("check", "left_behind", "verdict", "advice"),
    [
        ("triggers", {"idle_triggers": ("runs_are_legal",)}, "problem", "docket.runs ENABLE ALWAYS TRIGGER"),
        ("indexes", {"invalid_indexes": ("runs_ready_ccnew",)}, "warning", "DROP INDEX CONCURRENTLY"),
        ("open transactions", {"oldest_transaction_age": timedelta(minutes=11)}, "warning", "pg_terminate_backend"),
    ],
)
def test_what_an_administrator_left_behind_is_named(
    check: str, left_behind: dict[str, Any], verdict: str, advice: str
) -> None:
    found = _finding(check, upkeep=replace(KEPT, **left_behind))
    assert found.verdict == verdict
    assert any(name in found.seen for name in ("runs_are_legal", "runs_ready_ccnew", "session 7 of proj (report)"))
    assert advice in found.advice


def test_no_transaction_at_all_is_fine() -> None:
    nobody = replace(KEPT, oldest_transaction=None, oldest_transaction_age=None)
    assert _finding("open transactions", upkeep=nobody).verdict == "fine"


def test_no_registered_worker_is_a_problem_that_names_the_queue() -> None:
    found = _finding("workers", config={"queue": "flow"}, backlog={"workers": ()})
    assert found.verdict == "problem"
    assert "-Q flow" in found.advice


@pytest.mark.parametrize(
    ("config", "advice"),
    [
        ({}, "celery -A proj beat"),
        ({"tick": "worker"}, "send the ticks themselves"),
        ({"install_beat": False}, "docket_celery.dispatch"),
    ],
)
def test_missing_ticks_are_a_problem_of_whoever_should_send_them(config: dict[str, Any], advice: str) -> None:
    found = _finding("ticks", config=config, backlog={"last_scan_at": _seconds_ago(60)})
    assert (found.verdict, "0:01:00" in found.seen) == ("problem", True)
    assert advice in found.advice


def test_a_fleet_that_was_never_scanned_is_told_so() -> None:
    assert "nobody has ever scanned" in _finding("ticks", backlog={"last_scan_at": None}).seen


def test_the_age_of_a_scan_is_measured_against_the_interval() -> None:
    old = {"last_scan_at": _seconds_ago(120)}
    assert _finding("ticks", backlog=old).verdict == "problem"
    assert _finding("ticks", config={"poll_interval": 60}, backlog=old).verdict == "fine"


def test_ticks_that_wait_behind_full_slots_are_a_warning() -> None:
    assert _finding("ticks", backlog={"last_scan_at": _seconds_ago(60), "claimed": 2}).verdict == "warning"


def test_a_run_that_is_due_for_long_is_a_problem_unless_every_slot_is_taken() -> None:
    overdue = {"due": 3, "oldest_due_at": _seconds_ago(90)}
    assert _finding("due runs", backlog=overdue).verdict == "problem"
    assert _finding("due runs", backlog={**overdue, "claimed": 2}).verdict == "warning"
    assert _finding("due runs", backlog={**overdue, "claimed": 2, "unredeemed": 1}).verdict == "problem"
    assert _finding("due runs", backlog={**overdue, "oldest_due_at": _seconds_ago(30)}).verdict == "fine"


def test_leases_under_way_are_fine_and_those_that_nobody_takes_a_problem() -> None:
    assert _finding("leases", backlog={"claimed": 2, "unredeemed": 2}).verdict == "fine"
    found = _finding("leases", backlog={"claimed": 2, "unredeemed": 2, "undelivered": 1})
    assert found.verdict == "problem"
    assert "1 were handed out before" in found.seen


def test_poisoned_runs_are_a_problem_with_the_way_out() -> None:
    found = _finding("poisoned runs", backlog={"poisoned": 4})
    assert (found.verdict, found.seen) == ("problem", "4")
    assert "docket retry RUN" in found.advice


@pytest.mark.parametrize(
    ("multiplier", "seen"), [(4, "4 messages for each slot"), (0, "without bound")], ids=["four", "none"]
)
def test_prefetch_settings_that_hoard_are_a_warning(multiplier: int, seen: str) -> None:
    found = _finding("prefetch", prefetch_multiplier=multiplier, early_acknowledging=["own.a", "own.b"])
    assert found.verdict == "warning"
    assert seen in found.seen
    assert "2 of the app's tasks are acknowledged early" in found.seen
    assert "worker_prefetch_multiplier = 1" in found.advice


def test_a_worker_that_reserves_nothing_may_have_any_multiplier() -> None:
    assert _finding("prefetch", prefetch_multiplier=4, prefetch_disabled=True).verdict == "fine"


def test_messages_held_for_longer_than_rabbitmq_allows_are_a_warning() -> None:
    found = _finding("acknowledgements", transport="amqp", ack_connections=None, longest_hold=1_800.0)
    assert found.verdict == "warning"
    assert "1800 s" in found.seen
    assert "consumer_timeout" in found.advice


def test_more_greenlets_than_connections_that_acknowledge_are_a_warning() -> None:
    found = _finding("acknowledgements", backlog={"workers": CROWD}, is_green=True)
    assert found.verdict == "warning"
    assert "11 greenlets of a worker share 10 connections" in found.seen
    assert "ack_emulation" in found.advice


@pytest.mark.parametrize(
    "facts",
    [
        {"transport": "amqp", "ack_connections": None, "longest_hold": 1_799.0},
        {"transport": "redis", "longest_hold": 86_400.0},
        {"transport": None, "ack_connections": None},
        {"is_green": False},
        {"is_green": True, "ack_connections": 11},
        {"is_green": True, "ack_connections": None},
    ],
    ids=str,
)
def test_acknowledgements_that_nothing_stands_in_the_way_of_are_not_mentioned(facts: dict[str, Any]) -> None:
    findings = diagnose(replace(FACTS, backlog=replace(WELL, workers=CROWD), **facts))
    assert "acknowledgements" not in {finding.check for finding in findings}


def test_settings_of_the_host_that_reach_dockets_tasks_are_a_problem() -> None:
    found = _finding("host settings", strays=["docket_celery.vehicle time_limit: 5, not 750.0"])
    assert (found.verdict, found.seen) == ("problem", "docket_celery.vehicle time_limit: 5, not 750.0")
    assert _finding("host settings", routed=["docket_celery.vehicle"]).verdict == "fine"


def test_content_that_is_not_accepted_is_a_problem_with_its_cure() -> None:
    found = _finding("host settings", refused_content=["pickle"])
    assert (found.verdict, "'pickle'" in found.seen, "'json'" in found.advice) == ("problem", True, True)


def test_the_listener_is_looked_at_where_there_should_be_one() -> None:
    assert "listener" not in {finding.check for finding in diagnose(FACTS)}
    assert _finding("listener", listener="listening").verdict == "fine"
    assert _finding("listener", listener="nobody").verdict == "warning"
    pooled = _finding("listener", listener="pooled")
    assert (pooled.verdict, "past the pooler" in pooled.advice) == ("warning", True)


def test_workers_that_judge_claims_by_another_ttl_are_named_with_both_values() -> None:
    assert _finding("orphan TTL").verdict == "fine"
    other = WorkerSlots(worker="w2", slots=2, orphan_ttl=timedelta(seconds=2.5), seen_at=NOW)
    found = _finding("orphan TTL", backlog={"workers": (*WELL.workers, other)})
    assert (found.verdict, found.seen) == ("warning", "docket_orphan_ttl is 60 s here; w2 has 2.5 s")
