"""The graphs of the acceptance tests."""

from __future__ import annotations

from docket_celery import FINISH, START, Graph, Retry
from proj.nodes import approve, flaky, held, nap, price, step

order = (
    Graph("order")
    .input("order_id", str)
    .field("total", float)
    .field("approved", bool)
    .field("receipt", dict)
    .field("log", list[str], reducer="append")
    .node("price", price)
    .node("stock", step)
    .node("fraud", flaky, retry=Retry(max_attempts=2, backoff=0.2))
    .node("review", step)
    .node("approve", approve)
    .node("charge", "proj.tasks.receipt", inputs={"order_id": "order_id"}, writes="receipt")
    .edge(START, "price")
    .edge("price", "stock")
    .edge("price", "fraud")
    .edge(["stock", "fraud"], "review")
    .edge("review", "approve", when="total > 1000.0")
    .edge("review", "charge", when="total <= 1000.0")
    .edge("approve", "charge", when="approved")
    .edge("approve", FINISH, when="!approved")
    .edge("charge", FINISH)
    .output("receipt", "log")
)


def line(*nodes: str, name: str = "line") -> Graph:
    """One node after the other; those whose name begins with `gate` wait at it."""
    graph = Graph(name).field("log", list[str], reducer="append").output("log")
    for node in nodes:
        graph = graph.node(node, held if node.startswith("gate") else step)
    for source, target in zip([START, *nodes], [*nodes, FINISH], strict=True):
        graph = graph.edge(source, target)
    return graph


def retrying(backoff: float) -> Graph:
    """One node that fails at first."""
    return (
        Graph(f"retrying-{backoff}")
        .field("log", list[str], reducer="append")
        .node("flaky", flaky, retry=Retry(max_attempts=2, backoff=backoff, jitter=0.0))
        .edge(START, "flaky")
        .edge("flaky", FINISH)
    )


def napping(seconds: float) -> Graph:
    """A durable timer, and a node after it."""
    return (
        Graph(f"napping-{seconds}")
        .field("log", list[str], reducer="append")
        .node("nap", nap, config={"seconds": seconds})
        .node("s2", step)
        .edge(START, "nap")
        .edge("nap", "s2")
        .edge("s2", FINISH)
    )
