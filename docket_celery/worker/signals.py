"""Celery-style signals: what became of runs, told inside the process where it happened, once it is durable.

    from docket_celery import run_finished

    @run_finished.connect
    def announce(run, tenant, **_):
        ...

A `run` comes with all its values, so for a receiver of one the vehicle has to read those that it could do without. It
is a copy: what a receiver does to it, only the other receivers see.

Best effort: a process that dies after its commit sends nothing, a receiver that raises is logged and stops nobody, and
none decides anything. Receivers run in the vehicle's own time: keep them short. What must not be missed belongs in a
node of the graph, or is read from the run's events.

The sender is the app's `Docket`; like all of Celery's signals they hold receivers weakly unless told `weak=False`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from celery.utils.dispatch import Signal
from msgspec.structs import replace

from docket_celery.run.copies import copy_events, copy_run
from docket_celery.run.document import RunStatus
from docket_celery.run.events import EventType
from docket_celery.run.moment import Moment
from docket_celery.telemetry.hook import Fact, LeaseRefused, MomentCommitted, RunsPoisoned

moment_committed = Signal(name="moment_committed", providing_args={"run", "tenant", "checkpoint_type", "events"})
"""Every transition of a run: a step, a start, an answer, an end. `run` is the `Run` as committed."""
run_started = Signal(name="run_started", providing_args={"run", "tenant"})
"""A run exists. Sent by whoever started it. A start that joined a transaction of Django's or of a SQLAlchemy session is
told when that commits; one that joined a bare connection is not, since nobody here learns of its commit."""
run_waiting = Signal(name="run_waiting", providing_args={"run", "tenant"})
"""Only open interrupts are left: `run.interrupts` names them."""
run_finished = Signal(name="run_finished", providing_args={"run", "tenant"})
"""The run is done, failed or cancelled: see `run.status`, `run.output` and `run.failure`."""
run_poisoned = Signal(name="run_poisoned", providing_args={"run_id"})
"""The run is halted until an operator retries it."""
node_failed = Signal(name="node_failed", providing_args={"run", "tenant", "node", "event"})
"""An attempt of a node failed, whether or not it will be retried; `event.data` tells which attempt and why."""
lease_refused = Signal(name="lease_refused", providing_args={"run_id", "reason"})
"""A vehicle message had nothing to redeem: it came twice, or late. Harmless."""


_OF_MOMENTS = (moment_committed, run_started, node_failed, run_waiting, run_finished)


def are_received(sender: object, moment: Moment) -> bool:
    """Whether somebody receives this moment's run; a `NeedsValues` once its sender is given."""
    return any(signal.has_listeners(sender) for signal, _ in _outgoing(moment))


def send(sender: object, fact: Fact) -> None:
    """Tells the receivers of a fact; a `Hook` once its sender is given."""
    match fact:
        case MomentCommitted(moment=moment, tenant=tenant):
            if moment.run.unread or not any(signal.receivers for signal in _OF_MOMENTS):
                # Nobody listened before the commit. Whoever has connected since hears of the next moment.
                return
            if are_received(sender, moment):
                _tell(sender, moment, tenant)
        case RunsPoisoned(run_ids=run_ids):
            for run_id in run_ids:
                run_poisoned.send(sender=sender, run_id=run_id)
        case LeaseRefused(run_id=run_id, reason=reason):
            lease_refused.send(sender=sender, run_id=run_id, reason=reason)


def _tell(sender: object, moment: Moment, tenant: str | None) -> None:
    """Sends a moment's signals with copies: the vehicle goes on with what it has committed."""
    told = replace(moment, run=copy_run(moment.run), events=tuple(copy_events(moment.events)))
    for signal, rest in _outgoing(told):
        signal.send(sender=sender, run=told.run, tenant=tenant, **rest)


def _outgoing(moment: Moment) -> Iterator[tuple[Signal, dict[str, Any]]]:
    """The signals that carry this moment's run, in the order in which things happened, and what they carry besides. The
    transition itself comes first.
    """
    events, status = moment.events, moment.run.status
    yield moment_committed, {"checkpoint_type": moment.checkpoint_type.value, "events": events}
    if any(event.type is EventType.RUN_STARTED for event in events):
        yield run_started, {}
    for event in events:
        if event.type is EventType.NODE_FAILED:
            yield node_failed, {"node": event.node, "event": event}
    if status is RunStatus.WAITING:
        yield run_waiting, {}
    elif status.is_terminal:
        yield run_finished, {}
