"""Starting runs: one, or many in one statement; durable at once, or with a transaction of the caller's own.

Works from the published version alone. Whoever is told of a start is told once it is durable, and only then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias

from msgspec.structs import replace

from docket_celery.clock import utc_instant
from docket_celery.engine import Engine
from docket_celery.errors import InvalidInput, ValueRefused, shown
from docket_celery.lifecycle import wake_when_due
from docket_celery.program import RuntimeGraph
from docket_celery.run.document import Run
from docket_celery.run.moment import Moment
from docket_celery.run.values import encode_sorted
from docket_celery.runtime.loop import propose_init
from docket_celery.storage.contracts.values import InitialRun, Release, Scope, Started, check_name
from docket_celery.telemetry.hook import MomentCommitted
from docket_celery.transactions import joined

Input: TypeAlias = Mapping[str, Any]


def start_one(
    engine: Engine,
    scope: Scope,
    plan: RuntimeGraph,
    input: Input | None,
    *,
    key: str | None,
    start_at: datetime | None,
    connection: Any,
) -> Run:
    """As `Client.start_run` says."""
    moment = _first_moment(engine, plan, input)
    initial, runs = _initial(moment, key, start_at), engine.storage.runs
    (started,) = _inserted(
        lambda driver: (runs.insert_run(scope, initial, connection=driver),),
        lambda started: _report(engine, scope, [moment], started, wake=start_at is None),
        connection,
    )
    return started.run


def start_many(
    engine: Engine,
    scope: Scope,
    plan: RuntimeGraph,
    inputs: Sequence[Input | None],
    *,
    keys: Sequence[str | None] | None,
    connection: Any,
) -> tuple[Run, ...]:
    """As `Client.start_runs` says."""
    keys = _checked_keys(keys, len(inputs))
    moments = [_numbered(engine, plan, index, input) for index, input in enumerate(inputs)]
    initials = [_initial(moment, key, None) for moment, key in zip(moments, keys, strict=True)]
    started = _inserted(
        lambda driver: engine.storage.runs.insert_runs(scope, initials, connection=driver),
        lambda started: _report(engine, scope, moments, started, wake=True),
        connection,
    )
    return tuple(start.run for start in started)


def _inserted(
    insert: Callable[[Any], tuple[Started, ...]], report: Callable[[Sequence[Started]], None], connection: Any
) -> tuple[Started, ...]:
    """What `insert` stores, reported once it is durable: now, or with the transaction that `connection` has open.

    `insert` is given the driver's own connection, or None for one of the store's.
    """
    if connection is None:
        started = insert(None)
        report(started)
        return started
    transaction = joined(connection)
    started = insert(transaction.connection)
    if any(start.created for start in started):
        transaction.committed(lambda: report(started))
    return started


def _report(engine: Engine, scope: Scope, moments: Sequence[Moment], started: Sequence[Started], *, wake: bool) -> None:
    """Tells hooks of the runs that were created, and wakes the fleet for them."""
    made = [(moment, start) for moment, start in zip(moments, started, strict=True) if start.created]
    for moment, start in made:
        engine.hooks(MomentCommitted(moment=replace(moment, run=start.run), tenant=scope.tenant))
    if wake:
        _wake(engine, made)


def _wake(engine: Engine, made: Sequence[tuple[Moment, Started]]) -> None:
    """One nudge, however many runs became due: all of them are due at once."""
    for moment, start in made:
        if not moment.run.status.is_terminal:
            wake_when_due(moment, engine.waker, now=start.now)
            return


def _first_moment(engine: Engine, plan: RuntimeGraph, input: Input | None) -> Moment:
    return propose_init(
        plan, engine.ids.run_id(), {} if input is None else input, now=engine.clock.now(), options=engine.options
    )


def _numbered(engine: Engine, plan: RuntimeGraph, index: int, input: Input | None) -> Moment:
    try:
        return _first_moment(engine, plan, input)
    except InvalidInput as error:
        raise InvalidInput(f"inputs[{index}]: {error}") from error
    except ValueRefused as error:
        raise ValueRefused(f"inputs[{index}]: {error.path}", error.reason, code=error.code) from error


def _checked_keys(keys: Sequence[str | None] | None, count: int) -> Sequence[str | None]:
    if keys is None:
        return [None] * count
    if isinstance(keys, str) or not isinstance(keys, Sequence) or len(keys) != count:
        raise InvalidInput(f"keys must name each of the {count} inputs or be left out, got {shown(keys)}")
    for index, key in enumerate(keys):
        if key is not None:
            check_name(key, f"keys[{index}]")
    return keys


def _initial(moment: Moment, key: str | None, start_at: datetime | None) -> InitialRun:
    return InitialRun(
        run=moment.run,
        events=moment.events,
        schedule=_first_wake(moment, start_at),
        start_key=key,
        input_digest=None if key is None else _digest(moment.run),
    )


def _first_wake(moment: Moment, start_at: datetime | None) -> Release:
    if moment.run.status.is_terminal:
        return Release(kind="terminal")
    if start_at is None:
        return Release(kind="immediate")
    return Release(kind="at", at=utc_instant(start_at, "start_at"))


def _digest(run: Run) -> str:
    """Tells apart the inputs of two starts of one graph version. The order of an object's keys is none of it: whoever
    starts again may have the input from where that is lost.
    """
    return hashlib.sha256(encode_sorted(dict(run.fields)).encode("ascii")).hexdigest()
