"""Compiled graph versions of one process: loaded and compiled once, kept within a bound.

An instance belongs to one database and schema, and keys by owner scope as well, so that no tenant can fill another's
entries. A version that cannot be compiled here is remembered with its reason for a short while only: it heals by
itself once the missing code appears.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from docket_celery.compiler import compile, graph_hash
from docket_celery.compiler.nodes import Resolver
from docket_celery.errors import CorruptRecord, GraphFormatError, InvalidGraph
from docket_celery.graph.document import Graph
from docket_celery.program import RuntimeGraph
from docket_celery.runtime.failures import message_of, type_name
from docket_celery.runtime.options import RuntimeOptions
from docket_celery.storage.contracts.graph_store import GraphStore
from docket_celery.storage.contracts.values import GraphRef, Scope

logger = logging.getLogger("docket_celery")


@dataclass(frozen=True, slots=True, kw_only=True)
class Incompatible:
    """This process cannot compile the version, and why; retried after `until` (monotonic seconds)."""

    reason: str
    until: float


class Programs:
    """Loads graph versions as programs or, with `resolver` None, as plans."""

    def __init__(
        self,
        graphs: GraphStore,
        resolver: Resolver | None,
        *,
        options: RuntimeOptions,
        monotonic: Callable[[], float],
        size: int = 256,
        forget_after: float = 30.0,
    ) -> None:
        self._graphs = graphs
        self._resolver = resolver
        self._options = options
        self._monotonic = monotonic
        self._size = size
        self._forget_after = forget_after
        self._entries: OrderedDict[tuple[str | None, GraphRef], RuntimeGraph | Incompatible] = OrderedDict()
        self._lock = threading.Lock()
        _all.add(self)

    def begin_in_child(self) -> None:
        """A lock that another thread held at a fork is opened by nobody in the child."""
        self._lock = threading.Lock()

    def get(self, scope: Scope, ref: GraphRef) -> RuntimeGraph | Incompatible:
        """The compiled version, or why this process cannot have it. `NotFound` when it is not published."""
        known = self.known(scope, ref)
        if known is not None:
            return known
        loaded = self._load(scope, ref)
        key = (scope.tenant, ref)
        with self._lock:
            self._entries[key] = loaded
            self._entries.move_to_end(key)
            while len(self._entries) > self._size:
                self._entries.popitem(last=False)
        return loaded

    def known(self, scope: Scope, ref: GraphRef) -> RuntimeGraph | Incompatible | None:
        """The same without loading anything; None for what is not kept."""
        key = (scope.tenant, ref)
        with self._lock:
            entry = self._entries.get(key)
            if isinstance(entry, Incompatible) and entry.until <= self._monotonic():
                return None
            if entry is not None:
                self._entries.move_to_end(key)
            return entry

    def _load(self, scope: Scope, ref: GraphRef) -> RuntimeGraph | Incompatible:
        try:
            document = self._graphs.fetch_graph(scope, ref).document
        except CorruptRecord as error:
            return self._incompatible(str(error))
        try:
            graph = Graph.from_dict(document)
            if (graph.id, graph_hash(graph)) != (ref.graph_id, ref.graph_hash):
                return self._incompatible(f"the document of graph {ref.graph_id!r} does not hash to {ref.graph_hash}")
            return compile(
                graph,
                self._resolver,
                default_max_supersteps=self._options.max_supersteps,
                max_value_bytes=self._options.max_value_bytes,
            )
        except (GraphFormatError, InvalidGraph) as error:
            return self._incompatible(str(error))
        except Exception as error:
            # The host's own modules are imported on the way, and may raise anything.
            logger.exception("graph %s version %s could not be compiled here", ref.graph_id, ref.graph_hash)
            return self._incompatible(f"compiling failed here with {type_name(error)}: {message_of(error)}")

    def _incompatible(self, reason: str) -> Incompatible:
        return Incompatible(reason=reason, until=self._monotonic() + self._forget_after)


_all: weakref.WeakSet[Programs] = weakref.WeakSet()


def _begin_in_child() -> None:
    for programs in list(_all):
        programs.begin_in_child()


os.register_at_fork(after_in_child=_begin_in_child)
