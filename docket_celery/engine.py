"""One configuration, wired: the parts that dispatcher, vehicles and client share within a process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from docket_celery.clock import Clock, IdSource, Jitter, RandomIds, RandomJitter, SystemClock
from docket_celery.compiler.nodes import Resolver
from docket_celery.config import Config
from docket_celery.executors import NodeExecutor
from docket_celery.lifecycle import NoWaker, Waker
from docket_celery.programs import Programs
from docket_celery.renewal import NoRenewal, Renewal, Renewer, Witness
from docket_celery.runtime.executor import Executor
from docket_celery.runtime.options import RuntimeOptions
from docket_celery.storage.contracts.values import Storage
from docket_celery.telemetry.hook import Hooks


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Immutable.

    options   what the configuration says to the runtime
    programs  graph versions with their node code, for vehicles
    plans     the same versions without it, for the verbs: a process that only starts runs need not have the code
    executor  calls nodes under their deadlines
    renewer   keeps the claims of vehicles at work alive
    waker     nudges the fleet
    pause     sleeps for seconds; only ever used between retries and polls, never for a timer
    """

    config: Config
    options: RuntimeOptions
    storage: Storage
    resolver: Resolver
    programs: Programs
    plans: Programs
    executor: Executor
    renewer: Renewer
    hooks: Hooks
    waker: Waker
    clock: Clock
    ids: IdSource
    jitter: Jitter
    pause: Callable[[float], None]

    @property
    def orphan_ttl(self) -> timedelta:
        return timedelta(seconds=self.config.orphan_ttl)


def build(
    config: Config,
    storage: Storage,
    resolver: Resolver,
    *,
    pause: Callable[[float], None],
    waker: Waker | None = None,
    hooks: Hooks | None = None,
    clock: Clock | None = None,
    ids: IdSource | None = None,
    jitter: Jitter | None = None,
    executor: Executor | None = None,
    witness: Witness | None = None,
) -> Engine:
    """The engine of a process; what is not given is the real thing."""
    clock = clock or SystemClock()
    options = RuntimeOptions(
        max_value_bytes=config.max_value_bytes,
        max_attempt_elapsed=config.max_attempt_elapsed,
        max_supersteps=config.max_supersteps,
    )
    renewer = (
        Renewal(storage.runs, orphan_ttl=config.orphan_ttl, monotonic=clock.monotonic, witness=witness)
        if config.lease_renewal
        else NoRenewal()
    )
    return Engine(
        config=config,
        options=options,
        storage=storage,
        resolver=resolver,
        programs=Programs(storage.graphs, resolver, options=options, monotonic=clock.monotonic),
        plans=Programs(storage.graphs, None, options=options, monotonic=clock.monotonic),
        executor=executor or NodeExecutor(clock.monotonic),
        renewer=renewer,
        hooks=hooks or Hooks(),
        waker=waker or NoWaker(),
        clock=clock,
        ids=ids or RandomIds(),
        jitter=jitter or RandomJitter(),
        pause=pause,
    )
