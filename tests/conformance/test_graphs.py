"""Graph versions: content-addressed, immutable, each owner's own."""

from __future__ import annotations

import pytest
from support.builders import ORDER
from support.scene import Scene

from docket_celery.errors import InvalidInput, NotFound
from docket_celery.storage.contracts.graph_store import GraphStore
from docket_celery.storage.contracts.values import SYSTEM, TENANTLESS, GraphRef, GraphVersionPage, Scope, Storage

ACME = Scope.of("acme")
DOCUMENT = {"id": "order", "nodes": [{"id": "a", "config": {"one": 1, "one_point": 1.0}}], "title": "Größe"}


def _ref(letter: str, graph_id: str = "order") -> GraphRef:
    return GraphRef(graph_id=graph_id, graph_hash=letter * 64)


@pytest.fixture
def graphs(storage: Storage) -> GraphStore:
    return storage.graphs


def _publish(scene: Scene, *letters: str, graph_id: str = "order") -> None:
    for letter in letters:
        scene.storage.graphs.save_graph(TENANTLESS, _ref(letter, graph_id), {"id": graph_id, "version": letter})
        scene.clock.advance(1)


def test_a_published_version_reads_back_exactly(scene: Scene) -> None:
    assert scene.storage.graphs.save_graph(TENANTLESS, ORDER, DOCUMENT)
    version = scene.storage.graphs.fetch_graph(TENANTLESS, ORDER)
    assert (version.ref, version.published_at) == (ORDER, scene.now)
    assert repr(version.document["nodes"]) == repr(DOCUMENT["nodes"])
    assert version.document == DOCUMENT


def test_publishing_a_version_again_is_not_new_and_changes_nothing(scene: Scene) -> None:
    scene.storage.graphs.save_graph(TENANTLESS, ORDER, DOCUMENT)
    assert not scene.storage.graphs.save_graph(TENANTLESS, ORDER, DOCUMENT)
    assert len(scene.storage.graphs.list_graph_versions(TENANTLESS, "order").versions) == 1


def test_a_version_belongs_to_its_owner(graphs: GraphStore) -> None:
    assert graphs.save_graph(ACME, ORDER, DOCUMENT)
    with pytest.raises(NotFound):
        graphs.fetch_graph(TENANTLESS, ORDER)
    with pytest.raises(NotFound):
        graphs.fetch_latest(Scope.of("bolt"), "order")
    assert graphs.list_graphs(TENANTLESS) == ()
    assert graphs.list_graph_versions(TENANTLESS, "order").versions == ()
    assert graphs.save_graph(TENANTLESS, ORDER, DOCUMENT)


def test_the_system_scope_owns_no_versions(graphs: GraphStore) -> None:
    with pytest.raises(InvalidInput):
        graphs.save_graph(SYSTEM, ORDER, DOCUMENT)


def test_an_unknown_version_is_not_found(graphs: GraphStore) -> None:
    graphs.save_graph(TENANTLESS, ORDER, DOCUMENT)
    with pytest.raises(NotFound):
        graphs.fetch_graph(TENANTLESS, _ref("f"))
    with pytest.raises(NotFound):
        graphs.fetch_graph(TENANTLESS, GraphRef(graph_id="other", graph_hash=ORDER.graph_hash))
    with pytest.raises(NotFound):
        graphs.fetch_latest(TENANTLESS, "other")


def test_the_latest_version_is_the_one_published_last(scene: Scene) -> None:
    _publish(scene, "c", "a", "b")
    assert scene.storage.graphs.fetch_latest(TENANTLESS, "order").ref == _ref("b")


def test_publishing_an_older_version_again_makes_it_the_latest(scene: Scene) -> None:
    _publish(scene, "a", "b", "a")
    latest = scene.storage.graphs.fetch_latest(TENANTLESS, "order")
    assert (latest.ref, latest.document) == (_ref("a"), {"id": "order", "version": "a"})


def test_versions_are_listed_newest_first_in_pages(scene: Scene) -> None:
    _publish(scene, "c", "a", "b")
    _publish(scene, "d", graph_id="refund")
    graphs = scene.storage.graphs
    first = graphs.list_graph_versions(TENANTLESS, "order", limit=2)
    assert [ref for ref, _ in first.versions] == [_ref("b"), _ref("a")]
    assert (first.has_more, first.next_before) == (True, _ref("a"))
    second = graphs.list_graph_versions(TENANTLESS, "order", limit=2, before=first.next_before)
    assert [ref for ref, _ in second.versions] == [_ref("c")]
    assert (second.has_more, second.next_before) == (False, _ref("c"))


def test_within_one_instant_the_last_publication_is_still_the_latest(graphs: GraphStore) -> None:
    for letter in ("b", "c", "a", "c"):
        graphs.save_graph(TENANTLESS, _ref(letter), DOCUMENT)
    assert [ref for ref, _ in graphs.list_graph_versions(TENANTLESS, "order").versions] == [
        _ref("c"),
        _ref("a"),
        _ref("b"),
    ]
    assert graphs.fetch_latest(TENANTLESS, "order").ref == _ref("c")


def test_publishing_the_latest_version_again_leaves_its_time(scene: Scene) -> None:
    _publish(scene, "a", "b")
    before = scene.storage.graphs.fetch_latest(TENANTLESS, "order")
    _publish(scene, "b")
    assert scene.storage.graphs.fetch_latest(TENANTLESS, "order") == before


def test_an_unknown_graph_has_no_versions(graphs: GraphStore) -> None:
    assert graphs.list_graph_versions(TENANTLESS, "order") == GraphVersionPage(
        versions=(), next_before=None, has_more=False
    )


def test_graphs_are_listed_by_id_with_their_latest_version(scene: Scene) -> None:
    _publish(scene, "a", "b", graph_id="order")
    _publish(scene, "c", graph_id="Zebra")
    _publish(scene, "d", graph_id="ärger")
    graphs = scene.storage.graphs
    assert [version.ref for version in graphs.list_graphs(TENANTLESS)] == [
        _ref("c", "Zebra"),
        _ref("b", "order"),
        _ref("d", "ärger"),
    ]
    assert [version.ref.graph_id for version in graphs.list_graphs(TENANTLESS, limit=1, after="Zebra")] == ["order"]


def test_a_stored_document_cannot_be_changed_by_reference(graphs: GraphStore) -> None:
    document = {"id": "order", "nodes": ["a"]}
    graphs.save_graph(TENANTLESS, ORDER, document)
    document["nodes"] = []
    graphs.fetch_graph(TENANTLESS, ORDER).document["nodes"].append("b")
    assert graphs.fetch_graph(TENANTLESS, ORDER).document == {"id": "order", "nodes": ["a"]}
