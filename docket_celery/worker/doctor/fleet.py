"""Checks of work in progress: broker, workers and ticks, and the runs that wait for them."""

from __future__ import annotations

from datetime import timedelta
from typing import Final, assert_never

from docket_celery.worker.doctor.facts import Check, Facts, Finding
from docket_celery.worker.health import age, disagreeing, is_full

LONG_DUE: Final = timedelta(minutes=1)
"""A run that is due for longer than this waits for a reason."""


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


CHECKS: Final[tuple[Check, ...]] = (broker, workers, ttls, ticks, listening, due, leases, poison)
