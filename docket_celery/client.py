"""The verbs: what an application and an operator do with graphs and runs.

Everything here works from the stored document alone: starting, answering and cancelling need none of the node code.
A verb that makes a run due wakes the dispatcher once the change is durable; the broker may be down all the same.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from docket_celery.compiler import canonical, graph_hash, publishable, verify
from docket_celery.engine import Engine
from docket_celery.errors import AwaitTimeout, ConfigError, InvalidGraph, InvalidInput, RunPoisoned
from docket_celery.graph.diagnostics import Severity
from docket_celery.graph.document import Graph
from docket_celery.lifecycle import wake_when_due
from docket_celery.program import RuntimeGraph
from docket_celery.programs import Incompatible
from docket_celery.run.document import Run, RunStatus
from docket_celery.run.moment import Moment
from docket_celery.run.values import encode
from docket_celery.run.views import EventPage, RunCursor, RunInfo, RunPage
from docket_celery.runtime.loop import propose_init
from docket_celery.runtime.mutations import cancel, resolve_interrupt
from docket_celery.storage.contracts.values import (
    ClaimPolicy,
    Commit,
    GraphRef,
    GraphVersion,
    GraphVersionPage,
    InitialRun,
    ListQuery,
    MutationDecision,
    NoChange,
    Release,
    Scope,
    Storage,
    check_name,
)
from docket_celery.telemetry.hook import MomentCommitted
from docket_celery.vehicle import Vehicle

FIRST_POLL, SLOWEST_POLL = 0.01, 0.5
"""Seconds between two looks of `await_run`; the pause doubles from the first to the second."""


class Client(ABC):
    """The verbs, under one owner scope."""

    @property
    @abstractmethod
    def engine(self) -> Engine:
        """The engine behind these verbs."""

    @property
    def tenant(self) -> str | None:
        """Whose graphs and runs these verbs see; None for those of no tenant."""
        return None

    @property
    def storage(self) -> Storage:
        """The stores behind the verbs: `.graphs`, `.runs`, `.events`, `.fleet`."""
        return self.engine.storage

    def for_tenant(self, tenant: str) -> TenantClient:
        """The same verbs under a tenant's scope."""
        return TenantClient(self.engine, check_name(tenant, "tenant"))

    # -- graphs ---------------------------------------------------------------------------------------------------

    def save_graph(self, graph: Graph, *, check_nodes: bool = True) -> GraphRef:
        """Verifies, hashes and publishes a graph version; publishing it again changes nothing.

        Every node must resolve among what this process has registered, as it must in the workers; `check_nodes=False`
        is for a process that publishes graphs without having their code. `InvalidGraph` carries every problem found,
        and nothing is stored then.
        """
        found = (verify if check_nodes else publishable)(
            graph,
            self.engine.resolver,
            default_max_supersteps=self.engine.options.max_supersteps,
            max_value_bytes=self.engine.options.max_value_bytes,
        )
        errors = [diagnostic for diagnostic in found if diagnostic.severity is Severity.ERROR]
        if errors:
            raise InvalidGraph(graph.id, errors)
        ref = GraphRef(graph_id=graph.id, graph_hash=graph_hash(graph))
        self.storage.graphs.save_graph(self._scope(), ref, canonical(graph))
        return ref

    def fetch_graph(self, ref: GraphRef) -> Graph:
        """The published document of a version. `NotFound` when this scope has none such."""
        return Graph.from_dict(self.storage.graphs.fetch_graph(self._scope(), ref).document)

    def list_graph_versions(
        self, graph_id: str, *, limit: int = 50, before: GraphRef | None = None
    ) -> GraphVersionPage:
        """Versions of one graph, newest first."""
        return self.storage.graphs.list_graph_versions(self._scope(), graph_id, limit=limit, before=before)

    def list_graphs(self, *, limit: int = 50, after: str | None = None) -> tuple[GraphVersion, ...]:
        """The latest version of each graph, by graph id."""
        return self.storage.graphs.list_graphs(self._scope(), limit=limit, after=after)

    # -- runs -----------------------------------------------------------------------------------------------------

    def start_run(
        self,
        graph: GraphRef | str,
        input: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        start_at: datetime | None = None,
        connection: Any = None,
    ) -> Run:
        """Starts a run of a version, or by graph id of the latest one. Durable when it returns.

        key         names the start: a run of this scope that already has it is returned, in whatever status, if it is
                    of the same version and input; otherwise `KeyConflict`
        start_at    aware instant of the first wake, instead of now
        connection  a psycopg connection whose open transaction the start joins: the run exists when that commits

        `InvalidInput` names the field that is unknown, missing or unfit. Nothing is stored after an error.
        """
        scope = self._scope()
        ref = graph if isinstance(graph, GraphRef) else self.storage.graphs.fetch_latest(scope, graph).ref
        plan = self._plan(scope, ref)
        ids, clock = self.engine.ids, self.engine.clock
        moment = propose_init(plan, ids.run_id(), input or {}, now=clock.now(), options=self.engine.options)
        started = self.storage.runs.insert_run(
            scope,
            InitialRun(
                run=moment.run,
                events=moment.events,
                schedule=_first_wake(moment, start_at),
                start_key=None if key is None else check_name(key, "start key"),
                input_digest=None if key is None else _digest(moment.run),
            ),
            connection=connection,
        )
        if started.created and connection is None:
            self.engine.hooks(MomentCommitted(moment=moment, tenant=self.tenant))
            if start_at is None:
                wake_when_due(moment, self.engine.waker, now=started.now)
        return started.run

    def fetch_run(self, run_id: str) -> Run:
        """The run as last committed. `NotFound` when this scope has none such."""
        return self.storage.runs.fetch_run(self._scope(), run_id)

    def inspect_run(self, run_id: str) -> RunInfo:
        """The run with its schedule, claim, counters and poison facts."""
        return self.storage.runs.inspect_run(self._scope(), run_id)

    def list_runs(
        self,
        *,
        status: RunStatus | str | Sequence[RunStatus | str] | None = None,
        graph_id: str | None = None,
        graph_hash: str | None = None,
        limit: int = 50,
        before: str | None = None,
    ) -> RunPage:
        """Summaries, newest first; `before` is the `next_before` of the previous page."""
        query = ListQuery(
            limit=limit,
            before=None if before is None else RunCursor.decode(before),
            graph_id=graph_id,
            graph_hash=graph_hash,
            statuses=_statuses(status),
        )
        return self.storage.runs.list_runs(self._scope(), query)

    def list_events(self, run_id: str, *, after_seq: int = 0, limit: int = 250) -> EventPage:
        """Events of a run in order, from `after_seq` (exclusive) on."""
        return self.storage.events.list_events(self._scope(), run_id, after_seq=after_seq, limit=limit)

    def await_run(self, run_id: str, *, timeout: float | None = None) -> Run:
        """Waits until the run has ended or only open interrupts are left, and returns it.

        `RunPoisoned` carries the `RunInfo` of a run that its claim limits halted. `AwaitTimeout` after `timeout`
        seconds.
        """
        clock = self.engine.clock
        until = None if timeout is None else clock.monotonic() + timeout
        pause = FIRST_POLL
        while True:
            info = self.inspect_run(run_id)
            if info.run.status is not RunStatus.RUNNING:
                return info.run
            if info.poisoned_at is not None:
                raise RunPoisoned(info)
            if until is not None and clock.monotonic() + pause > until:
                raise AwaitTimeout(f"run {run_id!r} is still {info.view} at step {info.run.step} after {timeout:g} s")
            self.engine.pause(pause)
            pause = min(pause * 2, SLOWEST_POLL)

    def resolve_interrupt(self, run_id: str, interrupt_id: str, answer: Any) -> Run:
        """Answers an open interrupt. Answering it again changes nothing: the first answer stands.

        `NotFound` for an id that is not open, `InactiveRun` for an ended run, `InvalidInput` for an answer that does
        not fit.
        """
        run = self.fetch_run(run_id)
        plan = self._plan(self._scope(), GraphRef(graph_id=run.graph_id, graph_hash=run.graph_hash))

        def decide(latest: Run, now: datetime) -> Moment | None:
            return resolve_interrupt(plan, latest, interrupt_id, answer, now=now, options=self.engine.options)

        return self._mutate(run_id, decide)

    def cancel_run(self, run_id: str, *, reason: str = "") -> Run:
        """Ends a run as cancelled, whatever it is doing; a vehicle under way loses its claim.

        Cancelling a cancelled run changes nothing; `InactiveRun` when it ended otherwise.
        """
        return self._mutate(run_id, lambda latest, now: cancel(latest, now=now, reason=reason))

    def retry_poisoned_run(self, run_id: str) -> Run:
        """Gives a poisoned run fresh counters and an immediate wake; a healthy one is left as it is."""
        run = self.storage.runs.retry_poisoned_run(self._scope(), run_id)
        self.engine.waker.wake()
        return run

    def drain(self, *, limit: int | None = None) -> int:
        """Claims due runs and drains them in this process, until nothing is due or `limit` runs were drained.

        For tests, scripts and emergencies: regardless of registered slots and of tenant. Returns how many it drained.
        """
        config = self.engine.config
        policy = ClaimPolicy(limit=1, orphan_ttl=self.engine.orphan_ttl, max_claim_attempts=config.max_claim_attempts)
        vehicle = Vehicle(self.engine)
        drained = 0
        while limit is None or drained < limit:
            batch = self.storage.runs.claim_due(policy)
            for lease in batch.leases:
                vehicle.drain(lease)
                drained += 1
            if not batch.leases and not batch.poisoned:
                break
        return drained

    # -- shared ---------------------------------------------------------------------------------------------------

    def _scope(self) -> Scope:
        if self.tenant is None and self.engine.config.tenant_mode == "required":
            raise ConfigError("docket_tenant_mode is 'required': use docket.for_tenant(...)")
        return Scope.of(self.tenant)

    def _plan(self, scope: Scope, ref: GraphRef) -> RuntimeGraph:
        plan = self.engine.plans.get(scope, ref)
        if isinstance(plan, Incompatible):
            raise InvalidInput(f"graph {ref.graph_id}@{ref.graph_hash} cannot be used by this version: {plan.reason}")
        return plan

    def _mutate(self, run_id: str, decide: Callable[[Run, datetime], Moment | None]) -> Run:
        made: list[Moment] = []

        def mutation(latest: Run, now: datetime) -> MutationDecision:
            made[:] = [moment] if (moment := decide(latest, now)) is not None else []
            return Commit.from_moment(moment) if moment is not None else NoChange()

        mutated = self.storage.runs.mutate_run(self._scope(), run_id, mutation, commit_id=self.engine.ids.token())
        if mutated.changed:
            self.engine.hooks(MomentCommitted(moment=made[0], tenant=self.tenant))
            wake_when_due(made[0], self.engine.waker, now=mutated.now)
        return mutated.run


class TenantClient(Client):
    """The verbs over a given engine, under one owner scope."""

    def __init__(self, engine: Engine, tenant: str | None = None) -> None:
        self._engine = engine
        self._tenant = tenant

    @property
    def engine(self) -> Engine:
        return self._engine

    @property
    def tenant(self) -> str | None:
        return self._tenant


def _first_wake(moment: Moment, start_at: datetime | None) -> Release:
    if moment.run.status.is_terminal:
        return Release(kind="terminal")
    if start_at is None:
        return Release(kind="immediate")
    if not isinstance(start_at, datetime) or start_at.utcoffset() is None:
        raise InvalidInput(f"start_at must be an aware datetime, got {start_at!r}")
    return Release(kind="at", at=start_at)


def _digest(run: Run) -> str:
    """Tells apart the inputs of two starts of one graph version."""
    return hashlib.sha256(encode(dict(sorted(run.fields.items()))).encode("ascii")).hexdigest()


def _statuses(status: RunStatus | str | Sequence[RunStatus | str] | None) -> tuple[RunStatus, ...] | None:
    if status is None:
        return None
    given = [status] if isinstance(status, str) else list(status)
    try:
        return tuple(RunStatus(value) for value in given)
    except ValueError as error:
        known = ", ".join(status.value for status in RunStatus)
        raise InvalidInput(f"status must be one of {known}, got {status!r}") from error
