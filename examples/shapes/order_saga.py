"""An order as a saga: each step that succeeded is undone, in reverse, when a later one cannot be.

reserve -> charge -> ship -> (end)
             |         |
             |         +-- refused --> refund --> release --> (end)
             +------------ refused ------------> release --> (end)

A refusal is a result, not an exception: the node writes that it was refused, and guards lead to the compensation. An
exception remains what it is, a fault that is retried. What talks to the outside gives it the attempt's idempotency key,
so that a second execution after a crash neither charges nor refunds twice.
"""

from __future__ import annotations

from docket_celery import FINISH, START, Graph, NodeContext, Retry

PATIENT = Retry(max_attempts=8, backoff=1.0, backoff_max=300.0)
"""A compensation must not give up early: nobody else undoes the step."""


def reserve(order_id: str) -> dict[str, str]:
    return {"reservation": f"stock for {order_id}", "log": "reserved"}


def charge(amount: float, limit: float, ctx: NodeContext) -> dict[str, str]:
    """`limit` stands in for a bank."""
    if amount > limit:
        return {"payment": "refused", "log": "payment refused"}
    return {"payment": "taken", "receipt": ctx.activation_key, "log": "charged"}


def ship(address: str) -> dict[str, str]:
    """Refuses an address that nothing can be sent to."""
    if not address:
        return {"shipment": "refused", "log": "shipment refused"}
    return {"shipment": "sent", "log": f"shipped to {address}"}


def refund(receipt: str) -> dict[str, str]:
    return {"payment": "refunded", "log": f"refunded {receipt}"}


def release(reservation: str) -> dict[str, str]:
    return {"outcome": "undone", "log": f"released {reservation}"}


def complete() -> dict[str, str]:
    return {"outcome": "done"}


graph = (
    Graph("order_saga")
    .input("order_id", str)
    .input("amount", float)
    .input("limit", float, 1_000.0)
    .input("address", str)
    .field("reservation", str)
    .field("payment", str)
    .field("receipt", str)
    .field("shipment", str)
    .field("outcome", str)
    .field("log", list[str], reducer="append")
    .node("reserve", reserve, retry=Retry())
    .node("charge", charge, retry=Retry())
    .node("ship", ship, retry=Retry())
    .node("complete", complete)
    .node("refund", refund, retry=PATIENT)
    .node("release", release, retry=PATIENT)
    .edge(START, "reserve")
    .edge("reserve", "charge")
    .edge("charge", "ship", when="payment == 'taken'")
    .edge("charge", "release", when="payment == 'refused'")
    .edge("ship", "complete", when="shipment == 'sent'")
    .edge("ship", "refund", when="shipment == 'refused'")
    .edge("refund", "release")
    .edge("complete", FINISH)
    .edge("release", FINISH)
    .output("outcome", "log")
)
