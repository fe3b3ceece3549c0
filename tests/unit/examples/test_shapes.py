"""The three shapes come to their ends on every path, and to the same with a crash around every commit."""

from __future__ import annotations

from typing import Any

import pytest

from docket_celery import Graph, RunStatus
from docket_celery.compiler import local_resolver, publishable, verify
from docket_celery.run.document import OpenInterrupt
from docket_celery.testing import InlineRun, run_inline, run_with_crashes
from examples.shapes import agent_loop, order_saga, review_quorum

GRAPHS = [agent_loop.graph, order_saga.graph, review_quorum.graph]


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.id)
def test_each_can_be_published_without_a_remark(graph: Graph) -> None:
    assert verify(graph, local_resolver(graph)) == publishable(graph) == ()


# -- the agent ----------------------------------------------------------------------------------------------------


def decided(*, agreed: bool) -> Any:
    def answer(open_: OpenInterrupt) -> dict[str, Any]:
        return {"agreed": agreed, "step": open_.payload["step"]}

    return answer


def test_the_agent_searches_alone_and_sends_only_what_a_human_agreed_to() -> None:
    result = run_with_crashes(agent_loop.graph, {"question": "otters"}, resolve=decided(agreed=True))
    assert result.output == {"answer": "sent three results for otters"}
    assert [message["role"] for message in result.fields["messages"]] == [
        "user",
        "agent",
        "tool",
        "agent",
        "tool",
        "agent",
    ]


def test_the_agent_hears_a_refusal_and_ends_without_the_call() -> None:
    result = run_with_crashes(agent_loop.graph, {"question": "otters"}, resolve=decided(agreed=False))
    assert result.output == {"answer": "a human said no"}
    assert all("sent" not in message.get("text", "") for message in result.fields["messages"])


def test_the_agent_asks_again_for_other_calls_and_takes_no_answer_to_earlier_ones() -> None:
    said = iter([[{"tool": "send", "argument": "one"}], [{"tool": "send", "argument": "two"}], []])

    def think() -> dict[str, Any]:
        calls = next(said)
        return {"calls": calls, "risky": bool(calls), "answer": "done"}

    asked: list[str] = []

    def answer(open_: OpenInterrupt) -> dict[str, Any]:
        asked.append(open_.payload["calls"][0]["argument"])
        return decided(agreed=True)(open_)

    result = run_inline(agent_loop.graph, {"question": "q"}, stubs={"think": think}, resolve=answer)
    assert result.status is RunStatus.DONE
    assert asked == ["one", "two"]
    assert [message["text"] for message in result.fields["messages"]] == ["sent one", "sent two"]


# -- the saga -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("input", "outcome", "log"),
    [
        ({"amount": 10.0, "address": "Oslo"}, "done", ["reserved", "charged", "shipped to Oslo"]),
        (
            {"amount": 5_000.0, "address": "Oslo"},
            "undone",
            ["reserved", "payment refused", "released stock for o-1"],
        ),
        (
            {"amount": 10.0, "address": ""},
            "undone",
            [
                "reserved",
                "charged",
                "shipment refused",
                "refunded run-inline:charge@2",
                "released stock for o-1",
            ],
        ),
    ],
)
def test_the_saga_undoes_in_reverse_what_had_succeeded(input: dict[str, Any], outcome: str, log: list[str]) -> None:
    result = run_with_crashes(order_saga.graph, {"order_id": "o-1", **input})
    assert result.status is RunStatus.DONE
    assert result.output == {"outcome": outcome, "log": log}


def test_a_compensation_that_fails_for_a_while_is_tried_until_it_works() -> None:
    def refund(ctx: Any, receipt: str) -> dict[str, str]:
        if ctx.attempt < 5:
            raise ConnectionError("the bank is closed")
        return order_saga.refund(receipt)

    input = {"order_id": "o-1", "amount": 10.0, "address": ""}
    assert run_with_crashes(order_saga.graph, input, stubs={"refund": refund}).output["outcome"] == "undone"


# -- the quorum ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answers", "verdict"),
    [
        ({"ada": "yes", "ben": "yes", "cleo": "no"}, "accepted"),
        ({"ada": "no", "ben": "yes", "cleo": "no"}, "rejected"),
        ({"ada": "yes", "cleo": "yes"}, "accepted"),
        ({"ada": "yes", "ben": "no"}, "undecided"),
        ({}, "undecided"),
    ],
)
def test_two_of_three_decide_and_silence_counts_as_neither(answers: dict[str, str], verdict: str) -> None:
    resolve = {f"vote_{who}": vote for who, vote in answers.items()}
    result = run_with_crashes(review_quorum.graph, {"document": "d"}, resolve=resolve)
    votes = {who: answers.get(who, "silent") for who in review_quorum.REVIEWERS}
    assert result.output == {"verdict": verdict, "votes": votes}


def test_the_reviewers_are_asked_at_the_same_time_and_waited_for_a_day_at_most() -> None:
    run = InlineRun(review_quorum.graph, {"document": "d"})
    began = run.clock.now()
    run.step()
    run.step()
    assert [open_.payload["reviewer"] for open_ in run.run.interrupts] == ["ada", "ben", "cleo"]
    assert run.run.only_answers_missing
    run.finish()
    assert (run.clock.now() - began).total_seconds() == review_quorum.A_DAY
