"""Pages and positions that no reader can mean are refused by both stores, before any lookup."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.builders import a_run, an_initial
from support.scene import Scene

from docket_celery.errors import InvalidInput
from docket_celery.storage.contracts.values import SYSTEM, TENANTLESS, ListQuery, Storage

PAGES: dict[str, Callable[[Storage, Any], Any]] = {
    "events": lambda storage, limit: storage.events.list_events(SYSTEM, "nobody", limit=limit),
    "graphs": lambda storage, limit: storage.graphs.list_graphs(TENANTLESS, limit=limit),
    "versions": lambda storage, limit: storage.graphs.list_graph_versions(TENANTLESS, "order", limit=limit),
    "runs": lambda storage, limit: storage.runs.list_runs(SYSTEM, ListQuery(limit=limit)),
}


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("limit", [0, -1, 1_001, 2**70, True, 1.0, "1", None], ids=repr)
def test_a_page_has_from_one_to_a_thousand_rows(scene: Scene, page: str, limit: Any) -> None:
    with pytest.raises(InvalidInput, match="limit must be a whole number from 1 to 1000"):
        PAGES[page](scene.storage, limit)


@pytest.mark.parametrize("after", [-1, 2**63, True, "1", None], ids=repr)
def test_a_position_among_events_is_a_number_from_zero_on(scene: Scene, after: Any) -> None:
    with pytest.raises(InvalidInput, match="after_seq must be a whole number from 0"):
        scene.storage.events.list_events(SYSTEM, "nobody", after_seq=after)


@pytest.mark.parametrize("name", ["", "a\x00b", "\ud800", "x" * 256, 5], ids=ascii)
def test_a_list_is_not_filtered_by_what_names_nothing(scene: Scene, name: Any) -> None:
    graphs = scene.storage.graphs
    for ask in (
        lambda: graphs.list_graphs(TENANTLESS, after=name),
        lambda: graphs.list_graph_versions(TENANTLESS, name),
        lambda: ListQuery(graph_id=name),
        lambda: ListQuery(graph_hash=name),
    ):
        with pytest.raises(InvalidInput, match="graph"):
            ask()


@pytest.mark.parametrize("connection", [object(), "postgresql://localhost"], ids=["object", "text"])
def test_a_start_joins_no_connection_of_another_kind(scene: Scene, connection: Any) -> None:
    scene.publish()
    with pytest.raises(InvalidInput, match="connection"):
        scene.runs.insert_run(TENANTLESS, an_initial(a_run()), connection=connection)
    assert scene.runs.list_runs(SYSTEM, ListQuery()).runs == ()
