"""An engine over the memory store in which time, chance and faults are in the test's hands; and its client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from msgspec import structs
from support.clock import NOON
from support.faults import FaultyStore
from support.leaving import LeavingStore

from docket_celery.client import Client
from docket_celery.compiler import canonical, graph_hash
from docket_celery.config import Config
from docket_celery.engine import Engine, build
from docket_celery.errors import UnknownNode
from docket_celery.graph.document import Graph
from docket_celery.renewal import Held
from docket_celery.run.document import Run
from docket_celery.run.events import Event
from docket_celery.run.views import RunInfo
from docket_celery.runtime.executor import Executor, InlineExecutor
from docket_celery.storage.contracts.claims import ClaimPolicy, Lease
from docket_celery.storage.contracts.values import SYSTEM, GraphRef, Scope, Storage
from docket_celery.storage.memory import of_state
from docket_celery.storage.memory.state import State
from docket_celery.telemetry.hook import Fact, Hooks
from docket_celery.testing import FixedJitter, ManualClock, SequentialIds
from docket_celery.vehicle import Vehicle
from docket_celery.vehicle.outcomes import Outcome

T = TypeVar("T")


@dataclass(slots=True)
class Nudges:
    """A waker that only remembers."""

    after: list[float] = field(default_factory=list)

    def wake(self, *, after: float = 0.0) -> None:
        self.after.append(after)


@dataclass(slots=True)
class Holds:
    """A renewer that renews nothing: which claims were held, and which still are."""

    seen: list[Held] = field(default_factory=list)
    now: list[Held] = field(default_factory=list)

    def hold(self, held: Held) -> None:
        self.seen.append(held)
        self.now.append(held)

    def drop(self, held: Held) -> None:
        self.now.remove(held)


class Verbs(Client):
    """The client of a rig."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig

    @property
    def engine(self) -> Engine:
        return self._rig.engine


class Rig:
    """`clock` is the store's and, unless another is given as `worker_clock`, the process's. `pauses` are the waits,
    `state` what the memory store holds; another `storage` must run on `clock`. With `leaves`, claimed runs come without
    their values.
    """

    def __init__(
        self,
        *,
        executor: Callable[[ManualClock], Executor] | None = None,
        clock: ManualClock | None = None,
        worker_clock: ManualClock | None = None,
        storage: Storage | None = None,
        jitter: float = 0.0,
        leaves: bool = False,
        **options: Any,
    ) -> None:
        self.clock = clock or ManualClock(NOON)
        self.worker_clock = worker_clock or self.clock
        self.ids = SequentialIds()
        self.functions: dict[str, Callable[..., Any]] = {}
        self.facts: list[Fact] = []
        self.pauses: list[float] = []
        self.nudges = Nudges()
        self.holds = Holds()
        self.state = State(clock=self.clock, ids=self.ids)
        storage = storage or of_state(self.state)
        self.runs = FaultyStore(LeavingStore(storage.runs) if leaves else storage.runs)
        self.graphs = FaultyStore(storage.graphs)
        hooks = Hooks()
        hooks.add(self.facts.append, needs_values=lambda moment: False)
        engine = build(
            Config(**options),
            structs.replace(storage, runs=self.runs, graphs=self.graphs),
            self._resolve,
            pause=self._pause,
            waker=self.nudges,
            hooks=hooks,
            clock=self.worker_clock,
            ids=self.ids,
            jitter=FixedJitter(jitter),
            executor=(executor or (lambda clock: InlineExecutor(clock.monotonic)))(self.worker_clock),
        )
        self.engine = replace(engine, renewer=self.holds)
        self.verbs = Verbs(self)

    def publish(self, graph: Graph, tenant: str | None = None) -> GraphRef:
        """Publishes a graph whose functions are known here from now on."""
        self.functions |= {node.call: node.function for node in graph.nodes.values() if node.function is not None}
        ref = GraphRef(graph_id=graph.id, graph_hash=graph_hash(graph))
        self.engine.storage.graphs.save_graph(Scope.of(tenant), ref, canonical(graph))
        return ref

    def start(self, graph: Graph, input: dict[str, Any] | None = None, **options: Any) -> Run:
        return self.verbs.start_run(self.publish(graph), input or {}, **options)

    def lease(self, **policy: Any) -> Lease:
        """The one lease that a scan hands out."""
        (lease,) = self.leases(limit=1, **policy)
        return lease

    def leases(self, *, limit: int = 100, **policy: Any) -> tuple[Lease, ...]:
        """What a scan hands out."""
        given = {"orphan_ttl": self.engine.orphan_ttl, "max_claim_attempts": self.engine.config.max_claim_attempts}
        return self.runs.claim_due(ClaimPolicy(limit=limit, **(given | policy))).leases  # type: ignore[no-any-return]

    def vehicle(self, stopping: Callable[[], bool] = lambda: False) -> Vehicle:
        return Vehicle(self.engine, stopping=stopping)

    def drain(self, lease: Lease | None = None) -> Outcome:
        return self.vehicle().drain(lease or self.lease())

    def run(self, run_id: str = "run-1") -> Run:
        return self.runs.fetch_run(SYSTEM, run_id)  # type: ignore[no-any-return]

    def info(self, run_id: str = "run-1") -> RunInfo:
        return self.runs.inspect_run(SYSTEM, run_id)  # type: ignore[no-any-return]

    def events(self, run_id: str = "run-1") -> tuple[Event, ...]:
        return self.engine.storage.events.list_events(SYSTEM, run_id).events

    def expire(self) -> None:
        """Lets every claim run out."""
        self.advance(self.engine.config.orphan_ttl + 0.001)

    def advance(self, seconds: float) -> None:
        """Time passes, everywhere."""
        for clock in {id(clock): clock for clock in (self.clock, self.worker_clock)}.values():
            clock.advance(seconds)

    def takes(self, seconds: float) -> Callable[[], None]:
        """A node during which so much time passes, everywhere."""

        def node() -> None:
            self.advance(seconds)

        return node

    def reported(self, kind: type[T]) -> list[T]:
        """The facts of one kind."""
        return [fact for fact in self.facts if isinstance(fact, kind)]

    def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.advance(seconds)

    def _resolve(self, name: str) -> Callable[..., Any]:
        try:
            return self.functions[name]
        except KeyError:
            raise UnknownNode(f"no node {name!r} here") from None
