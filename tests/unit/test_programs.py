"""The cache of compiled graphs: what it keeps, for whom, for how long, and what it never hides."""

from __future__ import annotations

from typing import Any

import pytest
from support.faults import Fault, FaultyStore, unreachable
from support.forking import forked_while_held

from docket_celery import START, Graph
from docket_celery.compiler import canonical, graph_hash
from docket_celery.errors import CorruptRecord, NotFound, StoreUnavailable, UnknownNode
from docket_celery.program import RuntimeGraph
from docket_celery.programs import Incompatible, Programs
from docket_celery.runtime.options import RuntimeOptions
from docket_celery.storage import memory
from docket_celery.storage.contracts.values import TENANTLESS, GraphRef, Scope
from docket_celery.testing import ManualClock


def node() -> None:
    """A node that exists."""


class Shelf:
    """A cache over a graph store, with the functions that the process knows."""

    def __init__(self, **options: Any) -> None:
        self.clock = ManualClock()
        self.graphs = FaultyStore(memory.open_storage(clock=self.clock).graphs)
        self.functions: dict[str, Any] = {"proj:node": node}
        self.programs = Programs(
            self.graphs, self._resolve, options=RuntimeOptions(), monotonic=self.clock.monotonic, **options
        )

    def publish(self, name: str = "g", scope: Scope = TENANTLESS) -> GraphRef:
        graph = Graph(name).node("a", "proj:node").edge(START, "a")
        ref = GraphRef(graph_id=name, graph_hash=graph_hash(graph))
        self.graphs.save_graph(scope, ref, canonical(graph))
        return ref

    def _resolve(self, name: str) -> Any:
        found = self.functions.get(name)
        if isinstance(found, Exception):
            raise found
        if found is None:
            raise UnknownNode(f"no node {name!r} here")
        return found

    @property
    def loads(self) -> int:
        return self.graphs.count("fetch_graph")


def test_a_version_is_loaded_and_compiled_once() -> None:
    shelf = Shelf()
    ref = shelf.publish()
    first = shelf.programs.get(TENANTLESS, ref)
    assert isinstance(first, RuntimeGraph)
    assert first.nodes["a"].call is node
    shelf.clock.advance(1e9)
    assert shelf.programs.get(TENANTLESS, ref) is first
    assert shelf.loads == 1


def test_what_is_known_is_told_without_loading() -> None:
    shelf = Shelf(forget_after=30.0)
    ref = shelf.publish()
    assert shelf.programs.known(TENANTLESS, ref) is None
    assert shelf.loads == 0
    program = shelf.programs.get(TENANTLESS, ref)
    assert shelf.programs.known(TENANTLESS, ref) is program
    assert shelf.programs.known(Scope.of("acme"), ref) is None
    assert shelf.loads == 1


def test_a_tenants_entries_are_its_own() -> None:
    shelf = Shelf()
    ref = shelf.publish(scope=Scope.of("acme"))
    assert isinstance(shelf.programs.get(Scope.of("acme"), ref), RuntimeGraph)
    for scope in (TENANTLESS, Scope.of("other")):
        with pytest.raises(NotFound):
            shelf.programs.get(scope, ref)
    shelf.publish(scope=Scope.of("other"))
    assert isinstance(shelf.programs.get(Scope.of("other"), ref), RuntimeGraph)
    assert shelf.loads == 4


def test_what_cannot_be_compiled_here_is_remembered_for_a_while_only() -> None:
    shelf = Shelf(forget_after=30.0)
    ref = shelf.publish()
    known = shelf.functions.pop("proj:node")
    entry = shelf.programs.get(TENANTLESS, ref)
    assert isinstance(entry, Incompatible)
    assert "proj:node" in entry.reason
    shelf.functions["proj:node"] = known
    shelf.clock.advance(29.9)
    assert shelf.programs.get(TENANTLESS, ref) is entry
    assert shelf.loads == 1
    shelf.clock.advance(0.1)
    assert isinstance(shelf.programs.get(TENANTLESS, ref), RuntimeGraph)


def test_a_module_that_cannot_even_be_imported_here_is_an_incompatibility_with_its_reason() -> None:
    shelf = Shelf()
    ref = shelf.publish()
    shelf.functions["proj:node"] = ImportError("No module named 'torch'")
    entry = shelf.programs.get(TENANTLESS, ref)
    assert isinstance(entry, Incompatible)
    assert entry.reason == "compiling failed here with builtins.ImportError: No module named 'torch'"


@pytest.mark.parametrize("name", ["another id", "another content"])
def test_a_document_that_is_not_what_its_name_says_is_refused(name: str) -> None:
    shelf = Shelf()
    graph = Graph("g").node("a", "proj:node").edge(START, "a")
    stored = graph.node("b", "proj:node").edge("a", "b") if name == "another content" else graph
    wanted = "other" if name == "another id" else "g"
    ref = GraphRef(graph_id=wanted, graph_hash=graph_hash(graph))
    shelf.graphs.save_graph(TENANTLESS, ref, canonical(stored))
    entry = shelf.programs.get(TENANTLESS, ref)
    assert isinstance(entry, Incompatible)
    assert entry.reason == f"the document of graph {wanted!r} does not hash to {ref.graph_hash}"


def test_a_document_of_an_unknown_format_is_an_incompatibility() -> None:
    shelf = Shelf()
    ref = GraphRef(graph_id="g", graph_hash="a1" * 32)
    shelf.graphs.save_graph(TENANTLESS, ref, {"format": 99})
    assert isinstance(shelf.programs.get(TENANTLESS, ref), Incompatible)


def test_an_unreadable_row_is_an_incompatibility() -> None:
    shelf = Shelf()
    ref = shelf.publish()
    shelf.graphs.plan("fetch_graph", Fault(error=CorruptRecord("graph 'g': not JSON")))
    entry = shelf.programs.get(TENANTLESS, ref)
    assert isinstance(entry, Incompatible)
    assert entry.reason == "graph 'g': not JSON"


def test_absence_and_outage_are_never_remembered() -> None:
    shelf = Shelf()
    ref = shelf.publish()
    shelf.graphs.plan("fetch_graph", unreachable(), Fault(error=NotFound("not yet")))
    with pytest.raises(StoreUnavailable):
        shelf.programs.get(TENANTLESS, ref)
    with pytest.raises(NotFound):
        shelf.programs.get(TENANTLESS, ref)
    assert isinstance(shelf.programs.get(TENANTLESS, ref), RuntimeGraph)


def test_the_cache_is_bounded_and_drops_what_was_used_longest_ago() -> None:
    shelf = Shelf(size=2)
    one, two, three = (shelf.publish(name) for name in ("one", "two", "three"))
    for ref in (one, two, one, three):
        shelf.programs.get(TENANTLESS, ref)
    assert shelf.loads == 3
    shelf.programs.get(TENANTLESS, one)
    assert shelf.loads == 3
    shelf.programs.get(TENANTLESS, two)
    assert shelf.loads == 4


def test_plans_need_no_node_code() -> None:
    shelf = Shelf()
    ref = shelf.publish()
    plans = Programs(shelf.graphs, None, options=RuntimeOptions(), monotonic=shelf.clock.monotonic)
    plan = plans.get(TENANTLESS, ref)
    assert isinstance(plan, RuntimeGraph)
    assert plan.nodes["a"].call is None


def test_a_process_that_is_forked_while_a_thread_looks_a_version_up_has_a_cache_of_its_own() -> None:
    shelf = Shelf()
    ref = shelf.publish()
    shelf.programs.get(TENANTLESS, ref)
    assert forked_while_held(shelf.programs._lock, lambda: shelf.programs.get(TENANTLESS, ref)) == 0
