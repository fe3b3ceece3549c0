"""Values, instants and broken rows: what goes in comes out, and one bad row harms nobody else."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import psycopg
import pytest
from support.builders import IMMEDIATE, a_decision
from support.scene import RETAIN, Scene

from docket_celery.errors import CorruptRecord, InvalidMutation, NotFound
from docket_celery.run.document import Failure, OpenInterrupt, Task
from docket_celery.run.moment import Appended, Replaced
from docket_celery.storage.contracts.values import SYSTEM, ListQuery, Release
from docket_celery.storage.postgres import open_storage
from docket_celery.testing import ManualClock

VALUES: list[Any] = [
    "a\x00b",
    {"k\x00": 1},
    "\ud800",
    "x\udcff",
    "\U0001f600",
    2**63,
    -(2**63) - 1,
    10**400,
    0.1,
    -0.0,
    1e308,
    {"b": 1, "a": 2, "aa": 0},
    {},
    [],
    None,
    True,
    'quote " backslash \\ brace { comma , NULL',
    ["NULL", "", None],
    "é" * 5_000,
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: ascii(value)[:30])
def test_a_value_comes_back_as_it_was(place: Scene, value: Any) -> None:
    place.start(fields={"first": value})
    token = place.hold()
    appended = Appended(name="log", items=(value, [value]))
    place.commit(
        "run-1",
        token,
        schedule=RETAIN,
        fields={"second": value, "log": [value, [value]]},
        changes=(Replaced(name="second", value=value), appended),
    )
    fields = place.run().fields
    assert [repr(fields[name]) for name in ("first", "second")] == [repr(value)] * 2
    assert repr(fields["log"]) == repr([value, [value]])


def test_a_document_comes_back_whole(place: Scene) -> None:
    instant = datetime(2026, 1, 15, 12, 0, 0, 1, tzinfo=timezone(timedelta(hours=-7, minutes=-28)))
    parts = {
        "tasks": (Task(node="a", step=1, state="retrying", attempt=2, due_at=instant, answers={"x": "\x00"}, asked=1),),
        "interrupts": (
            OpenInterrupt(id="i", node="a", step=1, field="f", schema={}, payload="\ud800", deadline=instant),
        ),
        "arrived": {"[a, b] -> c": ("a",)},
        "answered": ("i0",),
        "failure": Failure(code="x", message="a\x00b", details={"k": [1]}),
    }
    place.start(**parts)
    run = place.run()
    assert {name: getattr(run, name) for name in parts} == parts


def test_replacing_an_appended_field_drops_its_chunks(place: Scene, beside: psycopg.Connection) -> None:
    place.start()
    token = place.hold()
    for items in ([1], [1, 2]):
        place.commit(
            "run-1", token, schedule=RETAIN, fields={"log": items}, changes=(Appended(name="log", items=(items[-1],)),)
        )
    place.commit("run-1", token, schedule=RETAIN, fields={"log": [9]})
    assert beside.execute("SELECT FROM run_chunks").fetchall() == []
    place.commit("run-1", token, schedule=RETAIN, fields={"log": [9, 10]}, changes=(Appended(name="log", items=(10,)),))
    assert place.run().fields == {"log": [9, 10]}


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Tokyo"])
def test_the_sessions_time_zone_and_date_style_change_nothing(place: Scene, postgres_url: str, zone: str) -> None:
    wake = datetime(2030, 7, 1, 12, tzinfo=UTC)
    place.start(schedule=Release(kind="at", at=wake))
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f"ALTER DATABASE {name} SET timezone = '{zone}'".encode())
        connection.execute(f"ALTER DATABASE {name} SET datestyle = 'German, DMY'".encode())
    there = open_storage(postgres_url, now=place.clock.now)
    assert there.runs.inspect_run(SYSTEM, "run-1") == place.info()
    decide = lambda run, now: a_decision(run, at=now, schedule=Release(kind="at", at=wake + timedelta(hours=1)))  # noqa: E731
    there.runs.mutate_run(SYSTEM, "run-1", decide, commit_id="c")
    assert place.info().wake_at == wake + timedelta(hours=1)


def test_a_naive_instant_is_refused_and_nothing_is_written(place: Scene) -> None:
    place.start()
    decide = lambda run, now: a_decision(run, at=now.replace(tzinfo=None), schedule=IMMEDIATE)  # noqa: E731
    with pytest.raises(InvalidMutation, match="time zone"):
        place.runs.mutate_run(SYSTEM, "run-1", decide, commit_id="c")
    assert place.run().checkpoint_seq == 1


BROKEN = {
    "an unknown version": """state = '{"v":99}'""",
    "an unknown key": """state = '{"v":1,"later":[]}'""",
    "no object": "state = '[]'",
    "an endless start": "started_at = 'infinity'",
    "a start before all time": "started_at = '-infinity'",
    "a far start": "started_at = '20000-01-01'",
    "an endless update": "updated_at = 'infinity'",
}


@pytest.mark.parametrize("change", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_row_is_corrupt_by_itself_and_harms_no_other(
    place: Scene, beside: psycopg.Connection, change: str
) -> None:
    for number in (1, 2, 3):
        place.start(f"run-{number}")
    beside.execute(f"UPDATE runs SET {change} WHERE id = 'run-2'".encode())
    with pytest.raises(CorruptRecord, match="run-2"):
        place.run("run-2")
    assert {"run-1", "run-3"} <= {summary.run_id for summary in place.runs.list_runs(SYSTEM, ListQuery()).runs}
    leases = {lease.run_id: lease for lease in place.scan().leases}
    assert leases.keys() == {"run-1", "run-2", "run-3"}
    with pytest.raises(CorruptRecord):
        place.runs.redeem_claim(leases["run-2"], token="mine")
    assert place.abandon("run-2", "mine") == "rescheduled"


@pytest.mark.parametrize("wake", ["infinity", "-infinity", "20000-01-01"])
def test_a_wake_beyond_pythons_calendar_breaks_neither_lists_nor_claims(
    place: Scene, beside: psycopg.Connection, wake: str
) -> None:
    place.start("run-1")
    place.start("run-2")
    beside.execute("UPDATE runs SET wake_at = %s::timestamptz WHERE id = 'run-2'", (wake,))
    assert len(place.runs.list_runs(SYSTEM, ListQuery()).runs) == 2
    assert place.storage.fleet.backlog(orphan_ttl=RETAIN.ttl).due >= 1
    assert "run-1" in {lease.run_id for lease in place.scan().leases}


@pytest.mark.parametrize("earliest", ["-infinity", "0001-01-01Z"])
def test_an_instant_at_the_beginning_of_time_stops_no_scan_on_the_running_clock(
    postgres_url: str, beside: psycopg.Connection, earliest: str
) -> None:
    place = Scene(open_storage(postgres_url), ManualClock())
    for run_id in ("run-1", "run-2", "run-3"):
        place.start(run_id)
    beside.execute("UPDATE runs SET wake_at = %s::timestamptz WHERE id = 'run-1'", (earliest,))
    assert {lease.run_id for lease in place.scan(limit=2).leases} == {"run-1", "run-2"}
    beside.execute("UPDATE runs SET claimed_at = %s::timestamptz WHERE id = 'run-1'", (earliest,))
    afresh = Scene(open_storage(postgres_url), ManualClock())
    assert {lease.run_id for lease in afresh.scan().leases} == {"run-1", "run-3"}


@pytest.mark.parametrize("run_id", ["", "a\x00b", "\ud800", "x" * 256])
def test_an_id_that_no_run_can_have_is_not_found(place: Scene, run_id: str) -> None:
    with pytest.raises(NotFound):
        place.run(run_id)


def test_counters_pass_the_edge_of_32_bits(place: Scene, beside: psycopg.Connection) -> None:
    place.start()
    beside.execute("UPDATE runs SET checkpoint_seq = 2147483647, event_seq = 2147483647, step = 2147483647")
    token = place.hold()
    place.commit("run-1", token, schedule=RETAIN)
    assert place.run().checkpoint_seq == 2**31
    assert place.run().event_seq == 2**31


def test_a_reason_with_nul_and_surrogates_is_stored_readably(place: Scene) -> None:
    place.start()
    place.abandon("run-1", place.hold(), reason="bad \x00 and \ud800")
    assert place.info().abandon_reason == "bad \\x00 and \\ud800"
