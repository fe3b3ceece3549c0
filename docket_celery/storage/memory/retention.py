"""Retention in memory. The store's lock makes each pass a transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from docket_celery.storage.contracts.retention import PruneCount, PrunePolicy
from docket_celery.storage.contracts.values import GraphRef, Scope
from docket_celery.storage.memory.state import State, StoredGraph, StoredRun, earlier


class MemoryRetention:
    """Implements `Retention`."""

    def __init__(self, state: State) -> None:
        self._state = state

    def prune(self, scope: Scope, policy: PrunePolicy) -> PruneCount:
        with self._state.lock:
            now = policy.now or self._state.clock.now()
            runs = self._old_runs(scope, now, policy)
            removed = runs if policy.dry_run else _bounded(runs, policy)
            gone = {stored.run.id for stored in removed}
            thinned = self._with_old_events(scope, now, policy, gone)
            cuts = [(stored, _cut(stored, now, policy)) for stored in _bounded(thinned, policy)]
            versions = self._old_graphs(scope, now, policy, gone)
            dropped = versions[: policy.batch]
            if policy.dry_run:
                cuts, dropped = [(stored, _cut(stored, now, policy)) for stored in thinned], versions
            else:
                self._remove(removed, cuts, dropped)
            return PruneCount(
                runs=len(removed),
                events=sum(len(stored.events) for stored in removed) + sum(cut for _, cut in cuts),
                graphs=len(dropped),
                more=not policy.dry_run
                and bool(
                    len(removed) < len(runs)
                    or self._with_old_events(scope, now, policy, gone)
                    or len(dropped) < len(versions)
                ),
            )

    def _old_runs(self, scope: Scope, now: datetime, policy: PrunePolicy) -> list[StoredRun]:
        """Ended long enough ago, the earliest end first."""
        if policy.runs is None:
            return []
        limit = earlier(now, policy.runs)
        return sorted((stored for stored in self._ended(scope) if _end(stored)[0] < limit), key=_end)

    def _with_old_events(self, scope: Scope, now: datetime, policy: PrunePolicy, gone: set[str]) -> list[StoredRun]:
        if policy.events is None:
            return []
        limit = earlier(now, policy.events)
        return [
            stored
            for stored in self._ended(scope)
            if stored.run.id not in gone and stored.events and stored.events[0].at < limit
        ]

    def _ended(self, scope: Scope) -> list[StoredRun]:
        return [
            stored
            for stored in self._state.runs.values()
            if stored.run.status.is_terminal and scope.sees(stored.tenant)
        ]

    def _old_graphs(
        self, scope: Scope, now: datetime, policy: PrunePolicy, gone: set[str]
    ) -> list[tuple[str | None, GraphRef]]:
        if policy.graphs is None:
            return []
        limit = earlier(now, policy.graphs)
        used = {
            (stored.tenant, GraphRef(graph_id=stored.run.graph_id, graph_hash=stored.run.graph_hash))
            for stored in self._state.runs.values()
            if stored.run.id not in gone
        }
        latest: dict[tuple[str | None, str], StoredGraph] = {}
        for (tenant, ref), graph in self._state.graphs.items():
            rival = latest.setdefault((tenant, ref.graph_id), graph)
            if (graph.published_at, ref.graph_hash) > (rival.published_at, rival.ref.graph_hash):
                latest[tenant, ref.graph_id] = graph
        kept = {id(graph) for graph in latest.values()}
        return [
            key
            for key, graph in self._state.graphs.items()
            if scope.sees(key[0]) and graph.published_at < limit and id(graph) not in kept and key not in used
        ]

    def _remove(
        self,
        runs: Sequence[StoredRun],
        cuts: Sequence[tuple[StoredRun, int]],
        versions: Sequence[tuple[str | None, GraphRef]],
    ) -> None:
        for stored in runs:
            del self._state.runs[stored.run.id]
            if stored.start_key is not None:
                del self._state.start_keys[stored.tenant, stored.start_key]
        for stored, cut in cuts:
            del stored.events[:cut]
        for key in versions:
            del self._state.graphs[key]


def _end(stored: StoredRun) -> tuple[datetime, str]:
    assert stored.run.finished_at is not None, "a terminal run has its end"
    return stored.run.finished_at, stored.run.id


def _cut(stored: StoredRun, now: datetime, policy: PrunePolicy) -> int:
    """How many events go, from the first one on."""
    assert policy.events is not None, "only then is a run thinned"
    limit = earlier(now, policy.events)
    old = next((index for index, event in enumerate(stored.events) if event.at >= limit), len(stored.events))
    return old if policy.dry_run else min(old, policy.event_batch)


def _bounded(runs: Sequence[StoredRun], policy: PrunePolicy) -> list[StoredRun]:
    """The first of `runs`, as many as one transaction may take; at least one if there is any."""
    taken: list[StoredRun] = []
    events = 0
    for stored in runs[: policy.batch]:
        if events >= policy.event_batch:
            break
        taken.append(stored)
        events += stored.run.event_seq
    return taken
