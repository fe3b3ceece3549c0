"""Graph versions in memory."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from docket_celery.errors import NotFound, shown
from docket_celery.run.values import fresh
from docket_celery.storage.contracts.bounds import check_limit
from docket_celery.storage.contracts.rules import owner_of
from docket_celery.storage.contracts.values import GraphRef, GraphVersion, GraphVersionPage, Scope, check_id, check_name
from docket_celery.storage.memory.state import State, StoredGraph


class MemoryGraphStore:
    """Implements `GraphStore`."""

    def __init__(self, state: State) -> None:
        self._state = state

    def save_graph(self, scope: Scope, ref: GraphRef, document: Mapping[str, Any]) -> bool:
        check_name(ref.graph_id, "graph id")
        check_id(ref.graph_hash, "graph hash")
        key = owner_of(scope), ref
        own = fresh(dict(document))
        with self._state.lock:
            published_at = self._state.clock.now()
            others = [graph.published_at for graph in self._versions(scope, ref.graph_id) if graph.ref != ref]
            if others and max(others) >= published_at:
                # The latest publication is the latest version, also while the clock stands still.
                published_at = max(others) + timedelta(microseconds=1)
            known = self._state.graphs.get(key)
            if known is None:
                self._state.graphs[key] = StoredGraph(ref=ref, document=own, published_at=published_at)
                return True
            if any(other > known.published_at for other in others):
                known.published_at = published_at
            return False

    def fetch_graph(self, scope: Scope, ref: GraphRef) -> GraphVersion:
        with self._state.lock:
            graph = self._state.graphs.get((owner_of(scope), ref))
            if graph is None:
                raise NotFound(f"no graph {shown(ref.graph_id)} version {shown(ref.graph_hash)} in this scope")
            return _version(graph)

    def fetch_latest(self, scope: Scope, graph_id: str) -> GraphVersion:
        with self._state.lock:
            versions = self._versions(scope, graph_id)
            if not versions:
                raise NotFound(f"no graph {shown(graph_id)} in this scope")
            return _version(max(versions, key=_age))

    def list_graph_versions(
        self, scope: Scope, graph_id: str, *, limit: int = 50, before: GraphRef | None = None
    ) -> GraphVersionPage:
        check_limit(limit)
        check_name(graph_id, "graph id")
        with self._state.lock:
            newest_first = sorted(self._versions(scope, graph_id), key=_age, reverse=True)
            if before is not None:
                last = self._state.graphs.get((owner_of(scope), before))
                newest_first = [graph for graph in newest_first if last is not None and _age(graph) < _age(last)]
            page = newest_first[:limit]
            return GraphVersionPage(
                versions=tuple((graph.ref, graph.published_at) for graph in page),
                next_before=page[-1].ref if page else before,
                has_more=len(newest_first) > limit,
            )

    def list_graphs(self, scope: Scope, *, limit: int = 50, after: str | None = None) -> tuple[GraphVersion, ...]:
        owner = owner_of(scope)
        check_limit(limit)
        if after is not None:
            check_name(after, "graph id")
        with self._state.lock:
            names = sorted({ref.graph_id for tenant, ref in self._state.graphs if tenant == owner})
            wanted = [name for name in names if after is None or name > after][:limit]
            return tuple(_version(max(self._versions(scope, name), key=_age)) for name in wanted)

    def _versions(self, scope: Scope, graph_id: str) -> list[StoredGraph]:
        owner = owner_of(scope)
        return [
            graph for (tenant, ref), graph in self._state.graphs.items() if tenant == owner and ref.graph_id == graph_id
        ]


def _age(graph: StoredGraph) -> tuple[datetime, str]:
    return graph.published_at, graph.ref.graph_hash


def _version(graph: StoredGraph) -> GraphVersion:
    return GraphVersion(ref=graph.ref, document=fresh(graph.document), published_at=graph.published_at)
