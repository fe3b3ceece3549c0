"""Graph versions: content-addressed, immutable, per owner scope."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from docket_celery.storage.contracts.values import GraphRef, GraphVersion, GraphVersionPage, Scope


class GraphStore(Protocol):
    """Publishes and reads graph versions. Owner scopes only: a version belongs to one tenant or to none."""

    def save_graph(self, scope: Scope, ref: GraphRef, document: Mapping[str, Any]) -> bool:
        """Publishes a version under its content hash. True if it was new; saving it again changes nothing.

        Publishing an older version again makes it the latest of its graph.
        """
        ...

    def fetch_graph(self, scope: Scope, ref: GraphRef) -> GraphVersion:
        """The version; `NotFound` when this scope has none such, `CorruptRecord` when its document cannot be read."""
        ...

    def fetch_latest(self, scope: Scope, graph_id: str) -> GraphVersion:
        """The latest published version of the graph; `NotFound` when there is none."""
        ...

    def list_graph_versions(
        self, scope: Scope, graph_id: str, *, limit: int = 50, before: GraphRef | None = None
    ) -> GraphVersionPage:
        """Versions newest first, by `(published_at, graph_hash)`; `before` is exclusive. Limits as in `list_graphs`."""
        ...

    def list_graphs(self, scope: Scope, *, limit: int = 50, after: str | None = None) -> tuple[GraphVersion, ...]:
        """The latest version of each graph, ordered by graph id (byte order); `after` is exclusive.

        `InvalidInput` for a limit outside 1..1000, or an id that no graph could have.
        """
        ...
