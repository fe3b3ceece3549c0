"""What is wrong with an installation, and what to do about it: pure judgement over facts that somebody else gathered.

One small function per check, each from facts to one finding. A fact that could not be gathered is None, and the checks
that need it say nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal, TypeAlias, assert_never

from docket_celery.config import Config
from docket_celery.storage.contracts.fleet import Backlog, Listening
from docket_celery.storage.contracts.upkeep import Upkeep
from docket_celery.worker.health import age, disagreeing, is_full

Verdict: TypeAlias = Literal["fine", "warning", "problem"]
"""A warning costs speed or may be meant; a problem needs somebody."""

RABBITMQ_PATIENCE: Final = 1_800.0
"""Seconds that RabbitMQ lets a consumer hold a message unacknowledged, unless its `consumer_timeout` says otherwise."""
LONG_DUE: Final = timedelta(minutes=1)
"""A run that is due for longer than this waits for a reason."""
LONG_OPEN: Final = timedelta(minutes=10)
"""Dead versions of rows that stay for so long begin to cost something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What was seen.

    database, schema, broker  None when all is well, otherwise what went wrong
    backlog, upkeep           None when it could not be read
    listener                  None where docket_listen is off, or when it could not be asked
    prefetch_multiplier       the app's; `prefetch_disabled` when workers reserve nothing at all
    early_acknowledging       names of the app's own tasks that are acknowledged before they run
    strays                    options of docket's tasks that are not what docket set: "task option: value, not wanted"
    routed                    names of docket's tasks that a route of the host matches
    refused_content           the app's `accept_content` where docket's messages are not among it, else None
    transport                 the kind of broker, such as "redis" or "amqp"; None when that cannot be told
    longest_hold              seconds for which a worker may hold a lease's message unacknowledged
    ack_connections           connections that acknowledgements in Redis share, None where there are none such
    is_green                  whether the app's configuration makes pools of greenlets
    """

    config: Config
    database: str | None
    schema: str | None
    broker: str | None
    backlog: Backlog | None
    upkeep: Upkeep | None
    listener: Listening | None
    prefetch_multiplier: int
    prefetch_disabled: bool
    early_acknowledging: Sequence[str]
    strays: Sequence[str]
    routed: Sequence[str]
    refused_content: Sequence[str] | None
    transport: str | None
    longest_hold: float
    ack_connections: int | None
    is_green: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One check's outcome. `advice` is empty when there is nothing to do."""

    check: str
    verdict: Verdict
    seen: str
    advice: str = ""


def diagnose(facts: Facts) -> tuple[Finding, ...]:
    """Every finding, in the order in which one would look."""
    findings = (check(facts) for check in _CHECKS)
    return tuple(finding for finding in findings if finding is not None)


def database(facts: Facts) -> Finding | None:
    if facts.database is None:
        return Finding(check="database", verdict="fine", seen="reachable")
    advice = "Start PostgreSQL, or correct docket_database_url. Runs wait; none is lost."
    return Finding(check="database", verdict="problem", seen=facts.database, advice=advice)


def schema(facts: Facts) -> Finding | None:
    if facts.database is not None:
        return None
    if facts.schema is None:
        return Finding(check="schema", verdict="fine", seen=f"{facts.config.schema!r} fits this release")
    advice = "Run `celery -A proj docket migrate` with the newest release that is in use."
    return Finding(check="schema", verdict="problem", seen=facts.schema, advice=advice)


def triggers(facts: Facts) -> Finding | None:
    if facts.upkeep is None:
        return None
    idle = facts.upkeep.idle_triggers
    if not idle:
        return Finding(check="triggers", verdict="fine", seen="all of them fire")
    return Finding(
        check="triggers",
        verdict="problem",
        seen=f"{', '.join(idle)}: disabled, or not for every session",
        advice=f"`ALTER TABLE {facts.config.schema}.runs ENABLE ALWAYS TRIGGER NAME` for each. A restore with "
        "--disable-triggers leaves them so; meanwhile a row that no run may have is not refused everywhere.",
    )


def indexes(facts: Facts) -> Finding | None:
    if facts.upkeep is None:
        return None
    invalid = facts.upkeep.invalid_indexes
    if not invalid:
        return Finding(check="indexes", verdict="fine", seen="all of them are valid")
    return Finding(
        check="indexes",
        verdict="warning",
        seen=f"{', '.join(invalid)}: kept up by every write, used by no query",
        advice="A rebuild was interrupted. `DROP INDEX CONCURRENTLY` for what ends in _ccnew or _ccold, "
        "`REINDEX INDEX CONCURRENTLY` for others.",
    )


def transactions(facts: Facts) -> Finding | None:
    if facts.upkeep is None:
        return None
    open_for, who = facts.upkeep.oldest_transaction_age, facts.upkeep.oldest_transaction
    if open_for is None or open_for <= LONG_OPEN:
        return Finding(check="open transactions", verdict="fine", seen=f"none for longer than {LONG_OPEN}")
    return Finding(
        check="open transactions",
        verdict="warning",
        seen=f"{who} has had one open for {open_for}",
        advice="Nothing that died since can be vacuumed, and tables and indexes grow. End it if it was forgotten: "
        "`SELECT pg_terminate_backend(PID)`, or `ROLLBACK PREPARED`.",
    )


def broker(facts: Facts) -> Finding | None:
    if facts.broker is None:
        return Finding(check="broker", verdict="fine", seen="reachable")
    advice = "Start the broker, or correct broker_url. Meanwhile `docket drain` works without it."
    return Finding(check="broker", verdict="problem", seen=facts.broker, advice=advice)


def workers(facts: Facts) -> Finding | None:
    backlog = facts.backlog
    if backlog is None:
        return None
    if backlog.workers:
        slots = sum(worker.slots for worker in backlog.workers)
        return Finding(check="workers", verdict="fine", seen=f"{len(backlog.workers)} with {slots} slots")
    return Finding(
        check="workers",
        verdict="problem",
        seen=f"none has registered slots for queue {facts.config.queue!r}",
        advice=f"Start one: `celery -A proj worker -Q {facts.config.queue}`. If one runs already, it has lost the "
        "broker or the database.",
    )


def ttls(facts: Facts) -> Finding | None:
    if facts.backlog is None:
        return None
    own = timedelta(seconds=facts.config.orphan_ttl)
    others = disagreeing(facts.backlog.workers, own)
    if not others:
        return Finding(check="orphan TTL", verdict="fine", seen=f"{facts.config.orphan_ttl:g} s everywhere")
    return Finding(
        check="orphan TTL",
        verdict="warning",
        seen=f"docket_orphan_ttl is {facts.config.orphan_ttl:g} s here; {others}",
        advice="Give every process the same value: whoever claims judges by its own, and could take a run from a "
        "worker that is well.",
    )


def ticks(facts: Facts) -> Finding | None:
    backlog, every = facts.backlog, facts.config.poll_interval
    if backlog is None:
        return None
    limit = timedelta(seconds=5 * every + 5)
    since = age(backlog.now, backlog.last_scan_at)
    if since is not None and since <= limit:
        return Finding(check="ticks", verdict="fine", seen=f"the last scan was {since} ago, one is due every {every} s")
    seen = "nobody has ever scanned" if since is None else f"the last scan was {since} ago, one is due every {every} s"
    if is_full(backlog):
        advice = "Every slot is taken: ticks wait until one is free. Nothing to do unless work piles up."
        return Finding(check="ticks", verdict="warning", seen=seen, advice=advice)
    if facts.config.tick == "worker":
        advice = f"Workers of queue {facts.config.queue!r} send the ticks themselves: see whether one runs."
    elif not facts.config.install_beat:
        advice = "docket_install_beat is off: see that your own schedule sends docket_celery.dispatch."
    else:
        advice = 'Start `celery -A proj beat`, or set docket_tick = "worker"; see that beat loads the same app.'
    return Finding(check="ticks", verdict="problem", seen=seen, advice=advice)


def listening(facts: Facts) -> Finding | None:
    match facts.listener:
        case None:
            return None
        case "listening":
            return Finding(check="listener", verdict="fine", seen="one worker listens for wakes by others")
        case "nobody":
            seen = "docket_listen is on, and no worker listens"
            advice = "See whether a worker of this release runs, and its log. Wakes by others wait for the tick."
        case "pooled":
            seen = "docket_listen is on, and docket_database_url leads to a pooler, behind which nobody can listen"
            advice = "Give the workers a URL past the pooler, or switch docket_listen off. Wakes wait for the tick."
        case _:
            assert_never(facts.listener)
    return Finding(check="listener", verdict="warning", seen=seen, advice=advice)


def due(facts: Facts) -> Finding | None:
    backlog = facts.backlog
    if backlog is None:
        return None
    waited = age(backlog.now, backlog.oldest_due_at)
    if waited is None:
        return Finding(check="due runs", verdict="fine", seen="none")
    seen = f"{backlog.due}, the oldest for {waited}"
    if waited <= LONG_DUE:
        return Finding(check="due runs", verdict="fine", seen=seen)
    if is_full(backlog):
        advice = "Every slot is taken: add workers or concurrency if this lasts."
        return Finding(check="due runs", verdict="warning", seen=seen, advice=advice)
    advice = "Nobody takes them: look at ticks, workers and broker above."
    return Finding(check="due runs", verdict="problem", seen=seen, advice=advice)


def leases(facts: Facts) -> Finding | None:
    backlog = facts.backlog
    if backlog is None:
        return None
    seen = f"{backlog.claimed} runs are handed out, {backlog.unredeemed} of them not taken yet"
    if not backlog.undelivered:
        return Finding(check="leases", verdict="fine", seen=seen)
    return Finding(
        check="leases",
        verdict="problem",
        seen=f"{seen}; {backlog.undelivered} were handed out before and not taken then",
        advice=f"Messages of queue {facts.config.queue!r} are lost or wait: a worker that is stuck or busy with other "
        "tasks, another virtual host, or a broker that was wiped. No attempt is counted for it.",
    )


def poison(facts: Facts) -> Finding | None:
    backlog = facts.backlog
    if backlog is None:
        return None
    if not backlog.poisoned:
        return Finding(check="poisoned runs", verdict="fine", seen="none")
    advice = (
        "`docket runs --poisoned` lists them, `docket show RUN` says why; mend that, then `docket retry RUN`, "
        "or cancel it."
    )
    return Finding(check="poisoned runs", verdict="problem", seen=str(backlog.poisoned), advice=advice)


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


_CHECKS: Final[tuple[Callable[[Facts], Finding | None], ...]] = (
    database,
    schema,
    triggers,
    indexes,
    transactions,
    broker,
    workers,
    ttls,
    ticks,
    listening,
    due,
    leases,
    poison,
    prefetch,
    acknowledgements,
    reach,
)
