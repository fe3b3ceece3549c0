"""Whatever commits meet, sound or not: together they come to what they come to one by one, here and in memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.builders import EXTERNAL, IMMEDIATE, TERMINAL, TTL, a_scan
from support.meeting import Meetings
from support.scene import QUIETLY, RETAIN, Scene

from docket_celery.errors import InvalidCommit, NotFound, RowRefused, StaleFence
from docket_celery.run.document import Failure, RunStatus
from docket_celery.run.events import Event, EventType
from docket_celery.run.moment import Appended, Change, CheckpointType, Replaced
from docket_celery.storage import memory, postgres
from docket_celery.storage.contracts.values import (
    SYSTEM,
    TENANTLESS,
    CommitProposal,
    Committed,
    Release,
    Scope,
    Storage,
)
from docket_celery.testing import ManualClock, SequentialIds

OWNERS = {"run-a": None, "run-b": "acme", "run-c": "acme", "run-d": "o'\\\"{,}\n\u2603", 'run-"e"': None}
"""One of them needs every kind of quotation."""
RUN_IDS = tuple(OWNERS)
UNREAD = "big"
"""A field that a vehicle may append to unread."""

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.sampled_from(['"', "\\", "{}", "NULL", "\x00", 'a\\"b', "\ud800", "%(id)s", "$1"]),
    st.lists(st.integers(0, 9), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(0, 9), max_size=2),
)
NAMES = st.sampled_from(["n", "text", 'q"uo\\te', UNREAD, "log"])
WAYS: dict[str, tuple[RunStatus, Any]] = {
    "retain": (RunStatus.RUNNING, RETAIN),
    "retain quietly": (RunStatus.RUNNING, QUIETLY),
    "retain briefly": (RunStatus.RUNNING, replace(RETAIN, ttl=timedelta(microseconds=1))),
    "retain for long": (RunStatus.RUNNING, replace(RETAIN, ttl=timedelta.max)),
    "immediate": (RunStatus.RUNNING, IMMEDIATE),
    "later": (RunStatus.RUNNING, TTL),
    "earlier": (RunStatus.RUNNING, -TTL),
    "external": (RunStatus.WAITING, EXTERNAL),
    "done": (RunStatus.DONE, TERMINAL),
    "failed": (RunStatus.FAILED, TERMINAL),
    "cancelled": (RunStatus.CANCELLED, TERMINAL),
}
DONE, STALE, INVALID, MISSING, UNSTORABLE = "done", "stale", "invalid", "missing", "unstorable"
FLAWS = {
    "another's token": STALE,
    "no run": MISSING,
    "another tenant": MISSING,
    "a sequence behind": STALE,
    "a sequence ahead": STALE,
    "another graph version": INVALID,
    "another graph": INVALID,
    "events that do not follow": INVALID,
    "text that cannot be": UNSTORABLE,
    "a number that cannot be": UNSTORABLE,
    "a nesting that cannot be": UNSTORABLE,
}
REFUSED = [flaw for flaw, why in FLAWS.items() if why != UNSTORABLE]
UNSTORED = [flaw for flaw, why in FLAWS.items() if why == UNSTORABLE]
CANNOT_BE = (RowRefused, ValueError, RecursionError)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One commit that is drawn: what it would do, and what is wrong with it."""

    run_id: str
    way: str
    fields: dict[str, Any]
    appended: dict[str, list[Any]]
    events: tuple[tuple[int, int, str | None], ...]
    flaw: str | None


EVENTS = st.tuples(st.integers(0, 2), st.integers(0, 2), st.sampled_from([None, "n", 'a"\\,{}', "NULL"]))


@st.composite
def _steps(draw: st.DrawFn) -> list[Step]:
    """Two to eight, of which no two may succeed for the same run. Seldom one that no statement can hold."""
    steps: list[Step] = []
    flaws = st.sampled_from(REFUSED + (UNSTORED if draw(st.integers(0, 7)) == 0 else []))
    for _ in range(draw(st.integers(2, 8))):
        run_id = draw(st.sampled_from(RUN_IDS))
        sound_before = any(step.run_id == run_id and step.flaw is None for step in steps)
        fields = draw(st.dictionaries(NAMES, VALUES, max_size=2))
        appended = draw(st.dictionaries(st.sampled_from(["log", UNREAD]), st.lists(VALUES, max_size=3), max_size=2))
        steps.append(
            Step(
                run_id=run_id,
                way=draw(st.sampled_from(sorted(WAYS))),
                fields={name: value for name, value in fields.items() if name not in appended},
                appended=appended,
                events=tuple(draw(st.lists(EVENTS, max_size=5))),
                flaw=draw(flaws if sound_before else st.none() | st.none() | flaws),
            )
        )
    # After a sound one that keeps its claim, the one that was ahead follows it.
    sound = _sound_ones(steps)
    ahead = [step for step in steps if step.flaw == "a sequence ahead" and step.run_id in sound]
    return [dataclasses.replace(step, flaw="another's token") if step in ahead else step for step in steps]


@dataclass(kw_only=True)
class World:
    """One store with some runs, all of them claimed, the older the claim the later the run was started."""

    scene: Scene
    tokens: dict[str, str] = field(default_factory=dict)

    def begin(self, aged: timedelta) -> None:
        for run_id, tenant in OWNERS.items():
            self.scene.start(run_id, tenant=tenant, fields={"n": 0, "log": ["begun"], UNREAD: ["x" * 20_000]})
            self.tokens[run_id] = f"token of {run_id}"
            self.scene.runs.take_due(a_scan(limit=1, preference="ready"), token=self.tokens[run_id])
            self.scene.commit(run_id, self.tokens[run_id], schedule=RETAIN, commit_id=f"begun {run_id}")
            self.scene.clock.advance(aged)

    def proposal(self, number: int, step: Step) -> tuple[Scope, CommitProposal]:
        """The same in every world."""
        scene = self.scene
        before = scene.run(step.run_id)
        now = scene.now
        status, schedule = WAYS[step.way]
        if isinstance(schedule, timedelta):
            schedule = Release(kind="at", at=now + schedule)
        fields = dict(before.fields)
        changes: list[Change] = [Replaced(name=name, value=value) for name, value in step.fields.items()]
        fields |= step.fields
        unread = frozenset({UNREAD} & step.appended.keys())
        for name, items in step.appended.items():
            changes.append(Appended(name=name, items=tuple(items)))
            fields[name] = [*fields[name], *items]
        kept = {name: value for name, value in fields.items() if name not in unread}
        run = replace(
            before,
            status=status,
            step=before.step + 1,
            checkpoint_seq=before.checkpoint_seq + 1,
            event_seq=before.event_seq + len(step.events),
            fields=kept,
            unread=unread,
            updated_at=now,
            finished_at=now + timedelta(seconds=1) if status.is_terminal else None,
            failure=Failure(code="c", message='m"\\{}') if status is RunStatus.FAILED else None,
        )
        events = tuple(
            Event(
                run_id=run.id,
                seq=before.event_seq + 1 + offset,
                type=EventType.STEP_COMMITTED,
                step=at_step,
                at=now + timedelta(microseconds=later),
                node=node,
                data={"number": offset, "text": 'x"\\,{}NULL'},
            )
            for offset, (at_step, later, node) in enumerate(step.events)
        )
        proposal = CommitProposal(
            run=run,
            events=events,
            changes=tuple(changes),
            checkpoint_type=CheckpointType.RUN_DONE if status.is_terminal else CheckpointType.STEP_COMMITTED,
            schedule=schedule,
            expected_checkpoint_seq=before.checkpoint_seq,
            claim_token=self.tokens[step.run_id],
            commit_id=f"commit {number}",
        )
        return _flawed(proposal, step.flaw, OWNERS[step.run_id])

    def seen(self) -> dict[str, Any]:
        """All that the store says about its runs."""
        runs, events = self.scene.runs, self.scene.storage.events
        return {
            run_id: (
                runs.inspect_run(SYSTEM, run_id),
                {name: repr(value) for name, value in sorted(runs.fetch_run(SYSTEM, run_id).fields.items())},
                events.list_events(SYSTEM, run_id).events,
            )
            for run_id in RUN_IDS
        }


def _flawed(proposal: CommitProposal, flaw: str | None, owner: str | None) -> tuple[Scope, CommitProposal]:
    run, scope = proposal.run, Scope.of(owner)
    elsewhere = TENANTLESS if owner else Scope.of("stranger")

    def moved(**parts: Any) -> CommitProposal:
        changed = replace(run, **parts)
        events = tuple(
            replace(event, run_id=changed.id, seq=event.seq + changed.event_seq - run.event_seq)
            for event in proposal.events
        )
        expected = changed.checkpoint_seq - 1
        return replace(proposal, run=changed, events=events, expected_checkpoint_seq=expected)

    match flaw:
        case None:
            return scope, proposal
        case "another's token":
            return scope, replace(proposal, claim_token="another's")
        case "no run":
            return scope, moved(id="nobody")
        case "another tenant":
            return elsewhere, proposal
        case "a sequence behind":
            return scope, moved(checkpoint_seq=run.checkpoint_seq - 1)
        case "a sequence ahead":
            return scope, moved(checkpoint_seq=run.checkpoint_seq + 1)
        case "another graph version":
            return scope, moved(graph_hash="b2" * 32)
        case "another graph":
            return scope, moved(graph_id="refund")
        case "events that do not follow":
            return scope, moved(event_seq=run.event_seq + 1)
        case "text that cannot be":
            return scope, replace(proposal, commit_id="a\x00b")
        case "a number that cannot be":
            return scope, replace(proposal, run=replace(run, step=2**63))
        case _:
            deep: Any = []
            for _ in range(100_000):
                deep = [deep]
            fields = {**run.fields, "deep": deep}
            change = Replaced(name="deep", value=deep)
            return scope, replace(proposal, run=replace(run, fields=fields), changes=(*proposal.changes, change))


def _outcome(done: Any) -> Any:
    """What one commit came to, in words that every store shares."""
    match done:
        case Committed(now=now, claimed_at=claimed_at, taken=None):
            return now, claimed_at
        case StaleFence():
            return STALE
        case InvalidCommit():
            return INVALID
        case NotFound():
            return MISSING
        case _ if isinstance(done, CANNOT_BE):
            return UNSTORABLE
    raise AssertionError(done)


def _one_by_one(world: World, proposals: Sequence[tuple[Scope, CommitProposal]]) -> list[Any]:
    outcomes = []
    for scope, proposal in proposals:
        try:
            outcomes.append(_outcome(world.scene.runs.commit(scope, proposal)))
        except Exception as error:
            outcomes.append(_outcome(error))
    return outcomes


class Stage:
    """One PostgreSQL store for all examples, and a connection that looks at its rows."""

    def __init__(self, url: str, connection: psycopg.Connection) -> None:
        self.clock = ManualClock()
        self.storage: Storage = postgres.open_storage(url, now=lambda: self.clock.now())
        self.meet = Meetings(self.storage.runs)
        self.connection = connection
        self.met = 0
        """Examples in which commits have met."""

    def world(self, aged: timedelta, inbox: int) -> World:
        for table in ("runs", "run_fields", "run_chunks", "run_events"):
            self.connection.execute(f"DELETE FROM {table}".encode())
        self.clock = ManualClock()
        world = World(scene=Scene(self.storage, self.clock, SequentialIds()))
        world.begin(aged)
        self.connection.execute("UPDATE runs SET inbox_seq = %s", [inbox])
        self.meet.statements.clear()
        return world

    def rows(self) -> list[Any]:
        """Every column of every row that belongs to runs, as text."""
        tables = ("runs", "run_fields", "run_chunks", "run_events")
        return [
            self.connection.execute(f"SELECT t::text FROM {name} t ORDER BY 1".encode()).fetchall() for name in tables
        ]


@pytest.fixture(scope="module")
def stage(postgres_server: Any, postgres_template: str) -> Iterator[Stage]:
    url = postgres_server.create_database("together", template=postgres_template)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET search_path = docket")
        yield Stage(url, connection)


def _in_memory(aged: timedelta, inbox: int) -> World:
    clock = ManualClock()
    storage = memory.open_storage(clock=clock, ids=SequentialIds())
    world = World(scene=Scene(storage, clock, SequentialIds()))
    world.begin(aged)
    for run in storage.runs._state.runs.values():  # type: ignore[attr-defined]
        run.inbox_seq = inbox
    return world


def _sound_ones(steps: Sequence[Step]) -> set[str]:
    return {step.run_id for step in steps if step.flaw is None}


def _blurred(outcomes: Sequence[Any], steps: Sequence[Step]) -> list[Any]:
    """Whether a commit that was not to be is stale or invalid depends on who of its run came first; whether a quiet one
    is told of its claim, on who came along. The claim itself is compared with the rows.
    """
    sound = _sound_ones(steps)
    blurred = []
    for outcome, step in zip(outcomes, steps, strict=True):
        if step.way == "retain quietly" and isinstance(outcome, tuple):
            outcome = DONE
        blurred.append(STALE if outcome == INVALID and step.run_id in sound else outcome)
    return blurred


AGES = st.sampled_from([timedelta(0), timedelta(microseconds=1), TTL / 12, TTL / 3])


def test_commits_that_meet_come_to_what_they_come_to_one_by_one(stage: Stage, pytestconfig: pytest.Config) -> None:
    thorough = bool(pytestconfig.getoption("--thorough"))

    @settings(
        max_examples=600 if thorough else 60,
        deadline=None,
        derandomize=not thorough,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(steps=_steps(), aged=AGES, inbox=st.sampled_from([0, 0, 1]))
    def holds(steps: list[Step], aged: timedelta, inbox: int) -> None:
        _compare(stage, steps, aged, inbox)

    holds()
    assert stage.met > 50


def _compare(stage: Stage, steps: list[Step], aged: timedelta, inbox: int) -> None:
    world = stage.world(aged, inbox)
    proposals = [world.proposal(number, step) for number, step in enumerate(steps)]
    calls = [partial(world.scene.runs.commit, scope, proposal) for scope, proposal in proposals]
    together = [_outcome(done) for done in stage.meet(*calls)]
    stage.met += any(name.startswith("commit_all") for name in stage.meet.statements)
    seen, rows = world.seen(), stage.rows()

    apart = stage.world(aged, inbox)
    same = [apart.proposal(number, step) for number, step in enumerate(steps)]
    one_by_one = _one_by_one(apart, same)
    assert _blurred(together, steps) == _blurred(one_by_one, steps)
    assert rows == stage.rows()

    remembered = _in_memory(aged, inbox)
    storable = [step for step in steps if step.flaw not in UNSTORED]
    in_memory = _one_by_one(remembered, [remembered.proposal(steps.index(step), step) for step in storable])
    kept = [outcome for outcome, step in zip(together, steps, strict=True) if step.flaw not in UNSTORED]
    assert _blurred(kept, storable) == _blurred(in_memory, storable)
    assert seen == remembered.seen()
