"""Holds the ledger against the database: was anything lost, and was anything committed twice?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from docket_celery.client import Client
from docket_celery.run.document import RunStatus
from docket_celery.run.events import Event, EventType
from examples.license_audit.watch import steals

_PAGE: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """The books of one audit.

    `refused` counts leases with nothing to redeem and results that came after their claim was gone. `problems` is empty
    when the books balance; each is a sentence naming the run.
    """

    runs: int
    moments: int
    executions: int
    attempts: int
    steals: int
    refused: int
    retries: int
    verdicts: int
    problems: tuple[str, ...]

    @property
    def repeated(self) -> int:
        """Node executions beyond one per attempt: what killed workers had begun and others did again."""
        return self.executions - self.attempts


def settle(docket: Client, run_ids: Sequence[str], entries: Sequence[Mapping[str, Any]]) -> Accounts:
    """Reads every run with all its events, and counts."""
    began = Counter(entry["key"] for entry in entries if entry["kind"] == "begin")
    problems: list[str] = []
    moments = retries = verdicts = 0
    for run_id in run_ids:
        run = docket.fetch_run(run_id)
        events = list(_events(docket, run_id))
        kinds = Counter(event.type for event in events)
        moments += run.checkpoint_seq
        retries += kinds[EventType.NODE_RETRY_SCHEDULED]
        verdicts += kinds[EventType.INTERRUPT_RESOLVED]
        if run.status is not RunStatus.DONE:
            problems.append(f"run {run_id} is {run.status.value}, not done: {run.failure}")
        problems += [f"run {run_id}: {problem}" for problem in check_events(events, run.event_seq)]
    return Accounts(
        runs=len(run_ids),
        moments=moments,
        executions=sum(began.values()),
        attempts=len(began),
        steals=steals(entries),
        refused=sum(entry["kind"] == "refused" for entry in entries),
        retries=retries,
        verdicts=verdicts,
        problems=tuple(problems),
    )


def check_events(events: Sequence[Event], latest: int) -> list[str]:
    """What is wrong with the history of a finished run: holes, and anything that was committed twice or never."""
    problems = []
    if [event.seq for event in events] != list(range(1, latest + 1)):
        problems.append(f"its events are not numbered 1 to {latest} without a hole")
    steps = Counter(event.step for event in events if event.type is EventType.STEP_COMMITTED)
    nodes = Counter((event.node, event.step) for event in events if event.type is EventType.NODE_COMPLETED)
    ends = sum(event.type is EventType.RUN_DONE for event in events)
    problems += [f"step {step} was committed {count} times" for step, count in steps.items() if count != 1]
    problems += [
        f"{node} of step {at} was committed {count} times" for (node, at), count in nodes.items() if count != 1
    ]
    if sorted(steps) != list(range(1, len(steps) + 1)):
        problems.append(f"its committed steps are {sorted(steps)}")
    if ends != 1:
        problems.append(f"it was finished {ends} times")
    return problems


def _events(docket: Client, run_id: str) -> Iterator[Event]:
    after = 0
    while page := docket.list_events(run_id, after_seq=after, limit=_PAGE).events:
        yield from page
        after = page[-1].seq
