"""Checks of what the host has set for its Celery app, where it bears on Docket's messages."""

from __future__ import annotations

from typing import Final

from docket_celery.worker.doctor.facts import Check, Facts, Finding

RABBITMQ_PATIENCE: Final = 1_800.0
"""Seconds that RabbitMQ lets a consumer hold a message unacknowledged, unless its `consumer_timeout` says otherwise."""


def prefetch(facts: Facts) -> Finding | None:
    if facts.prefetch_disabled:
        return Finding(check="prefetch", verdict="fine", seen="worker_disable_prefetch is on")
    multiplier = facts.prefetch_multiplier
    if multiplier == 1:
        return Finding(check="prefetch", verdict="fine", seen="worker_prefetch_multiplier is 1")
    hoarding = "without bound" if multiplier == 0 else f"{multiplier} messages for each slot"
    early = len(facts.early_acknowledging)
    more = f"; {early} of the app's tasks are acknowledged early and would be hoarded beside them" if early else ""
    return Finding(
        check="prefetch",
        verdict="warning",
        seen=f"worker_prefetch_multiplier is {multiplier}: a busy worker reserves {hoarding}{more}",
        advice="Set worker_prefetch_multiplier = 1 (on Redis also worker_disable_prefetch), so that no lease waits "
        "behind a busy process while another one idles.",
    )


def acknowledgements(facts: Facts) -> Finding | None:
    """Whether a worker can acknowledge what it may hold, for as long and as many at a time as it may hold them."""
    check = "acknowledgements"
    if facts.transport == "amqp" and facts.longest_hold >= RABBITMQ_PATIENCE:
        return Finding(
            check=check,
            verdict="warning",
            seen=f"a worker may hold a message for {facts.longest_hold:g} s; by default RabbitMQ allows "
            f"{RABBITMQ_PATIENCE:g} s, and Celery ends a worker that it refuses",
            advice="Set consumer_timeout in rabbitmq.conf (in ms) to more than that, or make "
            "docket_max_attempt_elapsed smaller.",
        )
    most = max((worker.slots for worker in facts.backlog.workers), default=0) if facts.backlog is not None else 0
    if facts.is_green and facts.ack_connections is not None and most > facts.ack_connections:
        return Finding(
            check=check,
            verdict="warning",
            seen=f"{most} greenlets of a worker share {facts.ack_connections} connections to Redis: some "
            "acknowledgements and messages are lost with `Too many connections`",
            advice='Set "ack_emulation": False in broker_transport_options, unless other tasks of these workers are '
            'acknowledged late; or a larger "max_connections".',
        )
    return None


def reach(facts: Facts) -> Finding | None:
    """What the host set for all of its tasks, and whether any of it got through to docket's."""
    if facts.strays:
        advice = "Something changed docket's tasks after the app was finalized: remove it."
        return Finding(check="host settings", verdict="problem", seen="; ".join(facts.strays), advice=advice)
    if facts.refused_content is not None:
        seen = f"accept_content is {list(facts.refused_content)!r}: workers drop docket's messages unread"
        advice = "Add 'json' to accept_content, or 'auth' where the app signs its messages."
        return Finding(check="host settings", verdict="problem", seen=seen, advice=advice)
    if facts.routed:
        seen = f"routes name {', '.join(facts.routed)}, and do not take effect: these tasks carry their own queue"
        return Finding(check="host settings", verdict="fine", seen=seen)
    return Finding(check="host settings", verdict="fine", seen="none reaches docket's tasks")


CHECKS: Final[tuple[Check, ...]] = (prefetch, acknowledgements, reach)
