"""A review by several people at once: two of three decide, and who stays silent for a day counts as neither.

submit -> ada, ben, cleo (each asks its reviewer) -> [all three] -> decide -> (end)

The barrier waits for all three, but none of them waits for ever: each question has a deadline and a default. So the
run always comes to a verdict, by people or by time.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from docket_celery import FINISH, START, Graph, Interrupt
from docket_celery.graph.elements import ConstantInput

Vote = Literal["yes", "no", "silent"]

REVIEWERS: Final = ("ada", "ben", "cleo")
QUORUM: Final = 2
A_DAY: Final = 86_400.0


def submit(document: str) -> dict[str, str]:
    return {"log": f"submitted {document}"}


def ask(reviewer: str, document: str, vote: Vote | None = None) -> Any:
    """One question to one reviewer; the answer counts once for the document and once in the tally."""
    if vote is None:
        question = {"reviewer": reviewer, "document": document}
        return Interrupt(f"vote_{reviewer}", payload=question, timeout=A_DAY, default="silent")
    return {"votes": {reviewer: vote}, "yes": int(vote == "yes"), "no": int(vote == "no")}


def decide(yes: int, no: int) -> str:
    if yes >= QUORUM:
        return "accepted"
    return "rejected" if no >= QUORUM else "undecided"


def _with_reviewers(graph: Graph) -> Graph:
    for reviewer in REVIEWERS:
        vote = f"vote_{reviewer}"
        graph = graph.field(vote, Vote).edge("submit", reviewer)
        graph = graph.node(reviewer, ask, inputs={"reviewer": ConstantInput(value=reviewer), "vote": vote})
    return graph


graph = (
    _with_reviewers(
        Graph("review_quorum")
        .input("document", str)
        .field("votes", dict[str, Vote], reducer="merge")
        .field("yes", int, reducer="sum")
        .field("no", int, reducer="sum")
        .field("verdict", str)
        .field("log", list[str], reducer="append")
        .node("submit", submit)
        .edge(START, "submit")
    )
    .node("decide", decide, writes="verdict")
    .edge(list(REVIEWERS), "decide")
    .edge("decide", FINISH)
    .output("verdict", "votes")
)
