"""The verbs: what an application and an operator do with graphs and runs.

Everything here works from the stored document alone: starting, answering and cancelling need none of the node code.
A verb that makes a run due nudges the fleet once the change is durable; the broker may be down all the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from docket_celery.compiler import canonical, graph_hash, publishable, verify
from docket_celery.draining import drain_due
from docket_celery.engine import Engine
from docket_celery.errors import (
    AwaitTimeout,
    ConfigError,
    CorruptRecord,
    EventConflict,
    InvalidGraph,
    InvalidInput,
    InvalidMutation,
    RunPoisoned,
    shown,
)
from docket_celery.graph.diagnostics import Diagnostic, Severity
from docket_celery.graph.document import Graph
from docket_celery.graph.elements import LONGEST_DELAY
from docket_celery.lifecycle import wake_when_due
from docket_celery.program import RuntimeGraph
from docket_celery.programs import Incompatible
from docket_celery.pruner import prune, retention
from docket_celery.run.document import Run, RunStatus
from docket_celery.run.moment import Moment
from docket_celery.run.views import EventPage, RunCursor, RunInfo, RunPage
from docket_celery.runtime.mutations import cancel, check_reason, forced_cancel, resolve_interrupt
from docket_celery.starting import start_many, start_one
from docket_celery.storage.contracts.retention import PruneCount
from docket_celery.storage.contracts.rules import forced_cancel_event
from docket_celery.storage.contracts.values import (
    SYSTEM,
    Commit,
    GraphRef,
    GraphVersion,
    GraphVersionPage,
    ListQuery,
    MutationDecision,
    NoChange,
    Scope,
    Storage,
    check_name,
)
from docket_celery.telemetry.hook import MomentCommitted

FIRST_POLL, SLOWEST_POLL = 0.01, 0.5
"""Seconds between two looks of `await_run`; the pause doubles from the first to the second."""


class _NotLoaded(Exception):
    """A run is locked whose graph version has to be loaded first, while nothing is held."""

    def __init__(self, ref: GraphRef) -> None:
        super().__init__(ref)
        self.ref = ref


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

    def verify_graph(self, graph: Graph, *, check_nodes: bool = True) -> tuple[Diagnostic, ...]:
        """Everything that `save_graph` would find wrong with the graph, by path. Connects to no database."""
        if not isinstance(graph, Graph):
            raise InvalidInput(f"a Graph is needed, got {type(graph).__name__}: Graph.from_dict() reads one")
        return (verify if check_nodes else publishable)(
            graph,
            self.engine.resolver,
            default_max_supersteps=self.engine.options.max_supersteps,
            max_value_bytes=self.engine.options.max_value_bytes,
        )

    def save_graph(self, graph: Graph, *, check_nodes: bool = True) -> GraphRef:
        """Verifies, hashes and publishes a graph version; publishing it again changes nothing.

        Every node must resolve among what this process has registered, as it must in the workers; `check_nodes=False`
        is for a process that publishes graphs without having their code. `InvalidGraph` carries every problem found,
        and nothing is stored then.
        """
        found = self.verify_graph(graph, check_nodes=check_nodes)
        errors = [diagnostic for diagnostic in found if diagnostic.severity is Severity.ERROR]
        if errors:
            raise InvalidGraph(graph.id, errors)
        ref = GraphRef(graph_id=graph.id, graph_hash=graph_hash(graph))
        self.storage.graphs.save_graph(self._scope(), ref, canonical(graph))
        return ref

    def fetch_graph(self, ref: GraphRef) -> Graph:
        """The published document of a version. `NotFound` when this scope has none such."""
        if not isinstance(ref, GraphRef):
            raise InvalidInput(f"fetch_graph takes a GraphRef, got {type(ref).__name__}")
        return Graph.from_dict(self.storage.graphs.fetch_graph(self._scope(), ref).document)

    def latest_graph(self, graph_id: str) -> GraphRef:
        """The version of a graph that was published last. `NotFound` when this scope has none."""
        return self.storage.graphs.fetch_latest(self._scope(), graph_id).ref

    def list_graph_versions(
        self, graph_id: str, *, limit: int = 50, before: GraphRef | None = None
    ) -> GraphVersionPage:
        """Versions of one graph, newest first."""
        if before is not None and not isinstance(before, GraphRef):
            raise InvalidInput(f"before must be a GraphRef, got {shown(before)}")
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
        connection  whose open transaction the start joins: the run exists once that commits. A psycopg connection,
                    Django's, or a SQLAlchemy session or connection over psycopg; of the database of the runs, which is
                    yours to see to. Django and a SQLAlchemy session nudge when they commit; after the commit of any
                    other call `wake()`, or leave it to the tick

        `InvalidInput` names the field that is unknown, missing or unfit. Nothing is stored after an error.
        """
        scope = self._scope()
        if key is not None:
            check_name(key, "start key")
        plan = self._plan(scope, self._version(scope, graph))
        return start_one(self.engine, scope, plan, input, key=key, start_at=start_at, connection=connection)

    def start_runs(
        self,
        graph: GraphRef | str,
        inputs: Iterable[Mapping[str, Any] | None],
        *,
        keys: Sequence[str | None] | None = None,
        connection: Any = None,
    ) -> tuple[Run, ...]:
        """Starts a run for each input in one statement: all of them or, after any error, none.

        `keys` go with the inputs one by one, and `connection` is what it is for `start_run`. An input or key that does
        not fit is named by its index. The runs come back in the order of the inputs, and the fleet is nudged once.
        """
        scope = self._scope()
        plan = self._plan(scope, self._version(scope, graph))
        return start_many(self.engine, scope, plan, tuple(inputs), keys=keys, connection=connection)

    def wake(self) -> None:
        """Nudges the fleet, bounded and best effort: after the commit of a transaction that a start has joined."""
        self.engine.waker.wake()

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
        poisoned: bool = False,
        limit: int = 50,
        before: str | None = None,
    ) -> RunPage:
        """Summaries, newest first; `before` is the `next_before` of the previous page. With `poisoned`, only of runs
        that their claim limits halted.
        """
        query = ListQuery(
            limit=limit,
            before=None if before is None else RunCursor.decode(before),
            graph_id=graph_id,
            graph_hash=graph_hash,
            statuses=_statuses(status),
            poisoned=poisoned,
        )
        return self.storage.runs.list_runs(self._scope(), query)

    def list_events(self, run_id: str, *, after_seq: int = 0, limit: int = 250) -> EventPage:
        """Events of a run in order, from `after_seq` (exclusive) on."""
        return self.storage.events.list_events(self._scope(), run_id, after_seq=after_seq, limit=limit)

    def await_run(self, run_id: str, *, timeout: float | None = None) -> Run:
        """Waits until the run has ended or only open interrupts are left, with a deadline or without, and returns it.

        `RunPoisoned` carries the `RunInfo` of a run that its claim limits halted. `AwaitTimeout` after `timeout`
        seconds.
        """
        clock = self.engine.clock
        until = clock.monotonic() + _seconds(timeout)
        pause = FIRST_POLL
        while True:
            info = self.inspect_run(run_id)
            if info.run.status is not RunStatus.RUNNING:
                return info.run
            if info.poisoned_at is not None:
                raise RunPoisoned(info)
            if info.run.only_answers_missing:
                return info.run
            remaining = until - clock.monotonic()
            if remaining <= 0:
                raise AwaitTimeout(f"run {run_id!r} is still {info.view} at step {info.run.step} after {timeout:g} s")
            self.engine.pause(min(pause, remaining))
            pause = min(pause * 2, SLOWEST_POLL)

    def resolve_interrupt(self, run_id: str, interrupt_id: str, answer: Any) -> Run:
        """Answers an open interrupt. Answering it again changes nothing: the first answer stands.

        `NotFound` for an id that is not open, `InactiveRun` for an ended run, `InvalidInput` for an answer that does
        not fit.
        """
        scope = self._scope()
        loaded: RuntimeGraph | None = None

        def decide(latest: Run, now: datetime) -> Moment | None:
            ref = GraphRef(graph_id=latest.graph_id, graph_hash=latest.graph_hash)
            plan = loaded or self.engine.plans.known(scope, ref)
            if not isinstance(plan, RuntimeGraph):
                raise _NotLoaded(ref)
            return resolve_interrupt(plan, latest, interrupt_id, answer, now=now, options=self.engine.options)

        try:
            return self._mutate(run_id, decide)
        except _NotLoaded as missing:
            loaded = self._plan(scope, missing.ref)
        return self._mutate(run_id, decide)

    def cancel_run(self, run_id: str, *, reason: str = "", force: bool = False) -> Run:
        """Ends a run as cancelled, whatever it is doing; a vehicle under way loses its claim.

        Cancelling a cancelled run changes nothing; `InactiveRun` when it ended otherwise. `force` also ends a run that
        cannot be read (`CorruptRecord`): its document is emptied; its fields stay, and are left out of the result.
        """
        reason = check_reason(reason)
        try:
            return self._mutate(run_id, lambda latest, now: cancel(latest, now=now, reason=reason))
        except (CorruptRecord, EventConflict, InvalidMutation):
            if not force:
                raise
        commit_id = self.engine.ids.token()
        ended = self.storage.runs.force_cancel(self._scope(), run_id, reason=reason, commit_id=commit_id)
        if ended.changed:
            moment = forced_cancel(ended.run, forced_cancel_event(ended.run, reason))
            self.engine.hooks(MomentCommitted(moment=moment, tenant=self.tenant))
        return ended.run

    def retry_poisoned_run(self, run_id: str) -> Run:
        """Gives a poisoned run fresh counters and an immediate wake; a healthy one is left as it is."""
        run = self.storage.runs.retry_poisoned_run(self._scope(), run_id)
        self.engine.waker.wake()
        return run

    def drain(self, *, limit: int | None = None) -> int:
        """Claims due runs and drains them in this process, until nothing is due or `limit` runs were drained.

        For tests, scripts and emergencies: regardless of registered slots and of tenant. Returns how many it drained.
        A run that crashes its vehicle does not stop the others; the first such error is raised at the end.
        """
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise InvalidInput(f"limit must be a whole number from 1 on or None, got {shown(limit)}")
        return drain_due(self.engine, limit=limit)

    def prune(
        self,
        *,
        dry_run: bool = False,
        graphs: bool = False,
        go_on: Callable[[PruneCount], bool] = lambda total: True,
    ) -> PruneCount:
        """Removes what is past `docket_run_retention` and `docket_event_retention`; of every tenant, or of this one.

        dry_run  counts what would go, and removes nothing
        graphs   removes graph versions too that are older than the retention of runs, that no run refers to, and that
                 are not the latest of their graph
        go_on    is told the total so far after each pass but the last; False ends it
        """
        scope = SYSTEM if self.tenant is None else self._scope()
        policy = retention(self.engine.config, graphs=graphs, dry_run=dry_run)
        return prune(self.engine, policy, scope=scope, go_on=go_on)

    # -- shared ---------------------------------------------------------------------------------------------------

    def _scope(self) -> Scope:
        if self.tenant is None and self.engine.config.tenant_mode == "required":
            raise ConfigError("docket_tenant_mode is 'required': use docket.for_tenant(...)")
        return Scope.of(self.tenant)

    def _version(self, scope: Scope, graph: GraphRef | str) -> GraphRef:
        if isinstance(graph, GraphRef):
            return graph
        if isinstance(graph, str):
            return self.storage.graphs.fetch_latest(scope, graph).ref
        raise InvalidInput(f"start_run takes a GraphRef or a graph id, got {type(graph).__name__}: save_graph() first")

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


def _seconds(timeout: float | None) -> float:
    """How long to wait at most, in seconds: for ever if None. `InvalidInput` for what is no number of seconds."""
    if timeout is None:
        return float("inf")
    # Compared, since `isnan` takes no integer that is beyond a float.
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout <= float("inf"):
        raise InvalidInput(f"timeout must be a number of seconds or None, got {shown(timeout)}")
    return min(timeout, LONGEST_DELAY)


def _statuses(status: RunStatus | str | Sequence[RunStatus | str] | None) -> tuple[RunStatus, ...] | None:
    if status is None:
        return None
    try:
        given = [status] if isinstance(status, str) else list(status)
        return tuple(RunStatus(value) for value in given)
    except (TypeError, ValueError) as error:
        known = ", ".join(status.value for status in RunStatus)
        raise InvalidInput(f"status must be one of {known}, got {shown(status)}") from error
