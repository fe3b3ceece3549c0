"""Finds node code by name, among what the host registered and nowhere else.

A name in a document resolves to a task of the app, to a function marked with `@node`, or to a function defined in a
module that the host lets in: `docket_node_modules`, or by default the modules that Celery itself loads (`imports`,
`include`, and those that `autodiscover_tasks` finds, under whatever `related_name`). Nothing is ever imported because a
document says so: documents may come from a UI or a customer.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Any

from celery import Celery

from docket_celery.errors import ConfigError, UnknownNode
from docket_celery.graph.functions import registered


class AppResolver:
    """Resolves for one app. Implements `Resolver`."""

    def __init__(self, app: Celery, node_modules: tuple[str, ...] | None) -> None:
        self._app = app
        self._node_modules = node_modules
        self._loaded = False

    def __call__(self, name: str) -> Callable[..., Any]:
        self.load()
        found = self._app.tasks.get(name) or self._marked(name) or self._defined(name)
        if found is None:
            raise UnknownNode(
                f"no node {name!r} here: it is no task of app {self._app.main!r}, not marked with @node, and not a "
                f"function of {', '.join(sorted(self._admitted())) or 'any admitted module'}"
            )
        return found

    def _marked(self, name: str) -> Callable[..., Any] | None:
        try:
            return registered(name)
        except UnknownNode:
            return None

    def _defined(self, name: str) -> Callable[..., Any] | None:
        """The function `module:qualname` if its module is admitted and defines it itself."""
        module_name, _, qualname = name.partition(":")
        if not qualname or module_name not in self._admitted():
            return None
        found: Any = sys.modules.get(module_name)
        for part in qualname.split("."):
            found = getattr(found, part, None)
        return found if inspect.isroutine(found) and getattr(found, "__module__", None) == module_name else None

    def load(self) -> None:
        """Imports what the host configured, once: a web process may not have done so yet.

        `ConfigError` for one of `docket_node_modules` that does not exist.
        """
        if self._loaded:
            return
        self._app.loader.import_default_modules()
        for module in self._node_modules or ():
            try:
                importlib.import_module(module)
            except ModuleNotFoundError as error:
                raise ConfigError(f"docket_node_modules names {module!r}, which cannot be imported: {error}") from error
        self._loaded = True

    def _admitted(self) -> set[str]:
        if self._node_modules is not None:
            return set(self._node_modules)
        return {
            name for name in self._app.loader.task_modules if name.partition(".")[0] not in ("celery", "docket_celery")
        }
