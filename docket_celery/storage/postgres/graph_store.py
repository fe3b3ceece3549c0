"""Graph versions in PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psycopg.rows import DictRow

from docket_celery.errors import InvalidInput, NotFound, shown
from docket_celery.run.values import encode
from docket_celery.storage.contracts.bounds import check_limit
from docket_celery.storage.contracts.rules import owner_of
from docket_celery.storage.contracts.values import GraphRef, GraphVersion, GraphVersionPage, Scope, check_id, check_name
from docket_celery.storage.postgres.database import Database
from docket_celery.storage.postgres.rows import graph_of, ref_of


class PostgresGraphStore:
    """Implements `GraphStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def save_graph(self, scope: Scope, ref: GraphRef, document: Mapping[str, Any]) -> bool:
        row = self._database.first(
            "save_graph",
            {
                "tenant": owner_of(scope) or "",
                "graph_id": check_name(ref.graph_id, "graph id"),
                "graph_hash": check_id(ref.graph_hash, "graph hash"),
                "document": encode(dict(document)),
                "now": self._database.now(),
            },
        )
        return row is not None and bool(row["created"])

    def fetch_graph(self, scope: Scope, ref: GraphRef) -> GraphVersion:
        row = self._read_one("fetch_graph", scope, ref.graph_id, graph_hash=ref.graph_hash)
        if row is None:
            raise NotFound(f"no graph {shown(ref.graph_id)} version {shown(ref.graph_hash)} in this scope")
        return graph_of(row)

    def fetch_latest(self, scope: Scope, graph_id: str) -> GraphVersion:
        row = self._read_one("fetch_latest_graph", scope, graph_id)
        if row is None:
            raise NotFound(f"no graph {shown(graph_id)} in this scope")
        return graph_of(row)

    def list_graph_versions(
        self, scope: Scope, graph_id: str, *, limit: int = 50, before: GraphRef | None = None
    ) -> GraphVersionPage:
        rows = self._database.read(
            "list_graph_versions",
            {
                "tenant": owner_of(scope) or "",
                "graph_id": check_name(graph_id, "graph id"),
                "before": None if before is None else check_name(before.graph_hash, "graph hash"),
                "limit": check_limit(limit) + 1,
            },
        )
        page = rows[:limit]
        return GraphVersionPage(
            versions=tuple((ref_of(row), row["published_at"]) for row in page),
            next_before=ref_of(page[-1]) if page else before,
            has_more=len(rows) > limit,
        )

    def list_graphs(self, scope: Scope, *, limit: int = 50, after: str | None = None) -> tuple[GraphVersion, ...]:
        parameters = {
            "tenant": owner_of(scope) or "",
            "after": None if after is None else check_name(after, "graph id"),
            "limit": check_limit(limit),
        }
        return tuple(graph_of(row) for row in self._database.read("list_graphs", parameters))

    def _read_one(self, name: str, scope: Scope, graph_id: str, **parameters: str) -> DictRow | None:
        tenant = owner_of(scope) or ""
        try:
            for value in (graph_id, *parameters.values()):
                check_name(value, "graph")
        except InvalidInput:
            return None
        return self._database.first(name, {"tenant": tenant, "graph_id": graph_id, **parameters})
