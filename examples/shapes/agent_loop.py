"""An agent: it thinks, calls tools, and asks a human before a call that cannot be taken back.

think -> act -> think ...            while there are calls to make
think -> approve -> act | think      when a call is dangerous: a human agrees, or the agent hears that it may not
think -> (end)                       when there is an answer

The conversation is the state: one list that nodes append to. So an agent that is interrupted for a day, or whose worker
dies, goes on from its last message. `model` stands in for a language model; a test or an app gives the node another.
"""

from __future__ import annotations

from typing import Any, Final

from docket_celery import FINISH, START, Graph, Interrupt, NodeContext, Retry

Message = dict[str, Any]
Call = dict[str, Any]

TOOLS: Final = {"search": lambda argument: f"three results for {argument}", "send": lambda argument: f"sent {argument}"}
DANGEROUS: Final = frozenset({"send"})


def model(messages: list[Message]) -> Message:
    """A model of three moves: look something up, send it, and say so."""
    said = [message["role"] for message in messages]
    if said.count("tool") == 0:
        return {"role": "agent", "calls": [{"tool": "search", "argument": messages[0]["text"]}]}
    if said.count("tool") == 1:
        return {"role": "agent", "calls": [{"tool": "send", "argument": messages[-1]["text"]}]}
    return {"role": "agent", "calls": [], "text": messages[-1]["text"]}


def think(question: str, messages: list[Message]) -> dict[str, Any]:
    """The next message; with calls to make, or with the answer."""
    asked: list[Message] = [] if messages else [{"role": "user", "text": question}]
    said = model([*messages, *asked])
    calls = said["calls"]
    risky = any(call["tool"] in DANGEROUS for call in calls)
    writes = {"messages": [*asked, said], "calls": calls, "risky": risky}
    return writes if calls else {**writes, "answer": said["text"]}


def approve(calls: list[Call], ctx: NodeContext, approval: dict[str, Any] | None = None) -> Any:
    """Asks once for each set of calls: an answer to earlier ones says nothing about these."""
    if approval is None or approval["step"] != ctx.step:
        return Interrupt("approval", payload={"calls": calls, "step": ctx.step}, schema=_answer_at(ctx.step))
    if approval["agreed"]:
        return {"allowed": True}
    return {"allowed": False, "messages": {"role": "tool", "text": "a human said no"}}


def act(calls: list[Call]) -> dict[str, Any]:
    """Makes the calls and appends what they gave."""
    return {"messages": [{"role": "tool", "text": TOOLS[call["tool"]](call["argument"])} for call in calls]}


def _answer_at(step: int) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"agreed": {"type": "boolean"}, "step": {"const": step}},
        "required": ["agreed", "step"],
    }


graph = (
    Graph("agent_loop", max_supersteps=40)
    .input("question", str)
    .field("messages", list[Message], reducer="append")
    .field("calls", list[Call], default=[])
    .field("risky", bool, default=False)
    .field("approval", dict[str, Any])
    .field("allowed", bool)
    .field("answer", str)
    .node("think", think, retry=Retry(max_attempts=5, backoff=2.0), timeout=120)
    .node("approve", approve)
    .node("act", act, retry=Retry(max_attempts=3))
    .edge(START, "think")
    .edge("think", "act", when="size(calls) > 0 && !risky")
    .edge("think", "approve", when="risky")
    .edge("think", FINISH, when="size(calls) == 0")
    .edge("approve", "act", when="allowed")
    .edge("approve", "think", when="!allowed")
    .edge("act", "think")
    .output("answer")
)
