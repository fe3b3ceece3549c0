"""Several questions at once: each answer goes to the question it names, in any order and all at the same time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from support.rig import Rig

from docket_celery import FINISH, START, Graph, Interrupt, RunStatus
from docket_celery.run.document import Run
from docket_celery.storage.contracts.values import Storage
from docket_celery.testing import ManualClock

QUESTIONS = ("q1", "q2", "q3")
ANSWERS = {"ans_q1": "A", "ans_q2": "B", "ans_q3": "C"}


def asking(calls: list[str]) -> Graph:
    def question(name: str) -> Any:
        def node(answer: str | None = None) -> Any:
            calls.append(name)
            return Interrupt(f"ans_{name}") if answer is None else None

        return node

    def d(**answers: str) -> dict[str, str]:
        calls.append("d")
        return {"log": "".join(answers[name] for name in sorted(answers))}

    graph = Graph("questions").field("log", list[str], reducer="append")
    for name in QUESTIONS:
        graph = graph.field(f"ans_{name}", str).node(name, question(name), inputs={"answer": f"ans_{name}"})
        graph = graph.edge(START, name)
    graph = graph.node("d", d, inputs={f"ans_{name}": f"ans_{name}" for name in QUESTIONS})
    return graph.edge(list(QUESTIONS), "d").edge("d", FINISH)


def _asked(storage: Storage, clock: ManualClock, calls: list[str]) -> tuple[Rig, Run]:
    rig = Rig(storage=storage, clock=clock)
    started = rig.start(asking(calls))
    rig.drain()
    run = rig.run(started.id)
    assert run.status is RunStatus.WAITING
    assert len({open_.id for open_ in run.interrupts}) == 3
    return rig, run


def _ended(rig: Rig, run: Run, calls: list[str]) -> None:
    ended = rig.run(run.id)
    assert ended.status is RunStatus.DONE
    assert {name: ended.fields[name] for name in ANSWERS} == ANSWERS
    assert ended.fields["log"] == ["ABC"]
    assert {name: calls.count(name) for name in (*QUESTIONS, "d")} == {"q1": 2, "q2": 2, "q3": 2, "d": 1}


def test_answers_in_any_order_go_to_their_questions_and_the_unanswered_are_not_asked_again(
    storage: Storage, clock: ManualClock
) -> None:
    calls: list[str] = []
    rig, run = _asked(storage, clock, calls)
    ids = {open_.field: open_.id for open_ in run.interrupts}
    for number, field in enumerate(("ans_q3", "ans_q1"), start=1):
        rig.verbs.resolve_interrupt(run.id, ids[field], ANSWERS[field])
        rig.drain()
        waiting = rig.run(run.id)
        assert waiting.status is RunStatus.WAITING
        assert {open_.field: open_.id for open_ in waiting.interrupts}.items() <= ids.items()
        assert len(waiting.interrupts) == 3 - number
    assert (calls.count("q2"), calls.count("d")) == (1, 0)
    rig.verbs.resolve_interrupt(run.id, ids["ans_q2"], "B")
    rig.drain()
    _ended(rig, run, calls)


def test_three_answers_at_once_are_all_accepted(storage: Storage, clock: ManualClock) -> None:
    calls: list[str] = []
    rig, run = _asked(storage, clock, calls)
    together = threading.Barrier(3)

    def answer(interrupt_id: str, field: str) -> None:
        together.wait(10)
        rig.verbs.resolve_interrupt(run.id, interrupt_id, ANSWERS[field])

    with ThreadPoolExecutor(3) as threads:
        given = [threads.submit(answer, open_.id, open_.field) for open_ in run.interrupts]
    for future in given:
        future.result()
    answered = rig.run(run.id)
    assert (answered.interrupts, len(answered.answered)) == ((), 3)
    rig.drain()
    _ended(rig, run, calls)
