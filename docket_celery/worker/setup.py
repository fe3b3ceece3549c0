"""`Docket(app)`: adds durable workflows to a Celery app, and gives the verbs over it.

Nothing is opened here: configuration is read when it is first needed, connections at first use in whichever process
uses them, after any fork.
"""

from __future__ import annotations

import time
import weakref
from functools import cached_property
from typing import Any

from celery import Celery

from docket_celery.client import Client
from docket_celery.clock import SystemClock
from docket_celery.config import Config
from docket_celery.dispatcher import Dispatcher
from docket_celery.engine import Engine, build
from docket_celery.errors import ConfigError
from docket_celery.storage.contracts.fleet import Fleet
from docket_celery.storage.postgres import open_storage
from docket_celery.telemetry.hook import Hooks
from docket_celery.worker.nodes import AppResolver
from docket_celery.worker.publisher import DISPATCH, Publisher
from docket_celery.worker.stopping import StopFlag
from docket_celery.worker.tasks import configure, register

_instances: weakref.WeakKeyDictionary[Celery, Docket] = weakref.WeakKeyDictionary()


class Docket(Client):
    """Docket on one Celery app. `Docket(app)` is all there is to wire; `init_app` does the same later."""

    def __init__(self, app: Celery | None = None) -> None:
        self.hooks = Hooks()
        self.stopping = StopFlag()
        self._app: Celery | None = None
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Celery) -> None:
        """Registers the tasks, the worker's steps and the beat entry with `app`."""
        if self._app is not None:
            raise ConfigError(f"this Docket already belongs to app {self._app.main!r}")
        if app in _instances:
            raise ConfigError(f"app {app.main!r} already has a Docket")
        self._app = app
        _instances[app] = self
        register(app, self)
        app.steps["worker"].add("docket_celery.worker.startup:Prepare")
        app.steps["consumer"].add("docket_celery.worker.capacity:RegisterSlots")
        if app.finalized:
            self._finalized(app)
        else:
            app.on_after_finalize.connect(self._finalized, weak=False)

    @staticmethod
    def of(app: Celery) -> Docket | None:
        """The Docket of an app, if it has one."""
        return _instances.get(app)

    @property
    def app(self) -> Celery:
        """The Celery app this belongs to."""
        if self._app is None:
            raise ConfigError("this Docket belongs to no Celery app yet: call init_app(app)")
        return self._app

    @cached_property
    def config(self) -> Config:
        """The app's `docket_` options, checked."""
        conf = self.app.conf
        return Config.from_mapping(
            {key: conf[key] for key in conf if isinstance(key, str) and key.startswith("docket_")}
        )

    @cached_property
    def engine(self) -> Engine:
        return build(
            self.config,
            open_storage(self.database_url, schema=self.config.schema),
            AppResolver(self.app, self.config.node_modules),
            pause=time.sleep,
            waker=self.publisher,
            hooks=self.hooks,
        )

    @cached_property
    def publisher(self) -> Publisher:
        """Sends leases and nudges for this app."""
        return Publisher(self.app, self.config, monotonic=SystemClock().monotonic)

    @cached_property
    def dispatcher(self) -> Dispatcher:
        """Claims and publishes for this app."""
        return Dispatcher(self.engine, self.publisher)

    @property
    def database_url(self) -> str:
        """The configured database; `ConfigError` when there is none."""
        if self.config.database_url is None:
            raise ConfigError(
                "docket_database_url is not set: name a PostgreSQL database, such as postgresql://localhost/proj"
            )
        return self.config.database_url

    @property
    def fleet(self) -> Fleet:
        """Where workers register their slots."""
        return self.storage.fleet

    def check_schema(self) -> None:
        """`SchemaMismatch`, with the command that mends it, when the database's schema is not the one needed."""
        from docket_celery.storage.postgres.migrate import check

        check(self.database_url, self.config.schema)

    def stopping_now(self, **_signal: Any) -> None:
        """Tells the vehicles of this worker to leave in good order."""
        self.stopping.raise_()

    def _finalized(self, sender: Celery, **_signal: Any) -> None:
        app = sender
        configure(app, self)
        if self.config.install_beat:
            app.add_periodic_task(
                float(self.config.poll_interval),
                app.tasks[DISPATCH].s(),
                name=DISPATCH,
                queue=self.config.tick_queue,
            )
