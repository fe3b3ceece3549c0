"""`Docket(app)`: adds durable workflows to a Celery app, and gives the verbs over it.

Nothing is opened here: configuration is read when it is first needed, connections at first use in whichever process
uses them, after any fork.
"""

from __future__ import annotations

import logging
import time
import weakref
from functools import cached_property, partial
from typing import Any

from celery import Celery
from celery.signals import beat_init, celeryd_init, worker_process_shutdown
from celery.utils.text import str_to_list

from docket_celery.client import Client
from docket_celery.clock import SystemClock
from docket_celery.config import PREFIX, Config
from docket_celery.dispatcher import Dispatcher
from docket_celery.engine import Engine, build
from docket_celery.errors import ConfigError
from docket_celery.executors import NodeExecutor
from docket_celery.storage.contracts.fleet import Fleet
from docket_celery.storage.postgres import open_storage
from docket_celery.telemetry.hook import Hooks
from docket_celery.worker import schedule
from docket_celery.worker.nodes import AppResolver
from docket_celery.worker.nudges import Windows
from docket_celery.worker.pools import node_executor
from docket_celery.worker.publisher import Publisher
from docket_celery.worker.queues import make_known
from docket_celery.worker.signals import are_received, send
from docket_celery.worker.standing_in import PoolLedger
from docket_celery.worker.stopping import StopFlag
from docket_celery.worker.tasks import configure, register

logger = logging.getLogger("docket_celery")

_instances: weakref.WeakKeyDictionary[Celery, Docket] = weakref.WeakKeyDictionary()


class Docket(Client):
    """Docket on one Celery app. `Docket(app)` is all there is to wire; `init_app` does the same later."""

    def __init__(self, app: Celery | None = None) -> None:
        self.hooks = Hooks()
        self.hooks.add(partial(send, self), needs_values=partial(are_received, self))
        self.stopping = StopFlag()
        self.pool_ledger = PoolLedger()
        self._app: Celery | None = None
        self._read: tuple[Any, Config] | None = None
        self._was_finalized = False
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
        app.steps["worker"].add("docket_celery.worker.startup:StandInForPool")
        app.steps["worker"].add("docket_celery.worker.startup:TellVehicles")
        app.steps["consumer"].add("docket_celery.worker.capacity:RegisterSlots")
        app.steps["consumer"].add("docket_celery.worker.ticker:Ticker")
        app.steps["consumer"].add("docket_celery.worker.listening:Listen")
        if app.finalized:
            self._finalized(app)
        else:
            app.on_after_finalize.connect(self._finalized_later, weak=False)
        app.on_after_configure.connect(self._configured_anew, weak=False)
        own = f"docket-{id(self)}"  # Older versions of Celery take a method of two objects for one receiver.
        beat_init.connect(self._beat_starts, dispatch_uid=own)
        celeryd_init.connect(self._worker_starts, dispatch_uid=own)
        worker_process_shutdown.connect(self._pool_process_ends, dispatch_uid=own)

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

    @property
    def config(self) -> Config:
        """The app's `docket_` options, checked. Read once for each time that the app is configured."""
        conf = self.app.conf
        if self._read is None or self._read[0] is not conf:
            options = {name: conf[name] for name in map(self._option, conf) if name is not None}
            self._read = conf, Config.from_mapping(options)
        return self._read[1]

    @cached_property
    def engine(self) -> Engine:
        return build(
            self.config,
            open_storage(self.database_url, schema=self.config.schema, notify=self.config.listen),
            AppResolver(self.app, self.config.node_modules),
            pause=time.sleep,
            waker=self.publisher,
            hooks=self.hooks,
            executor=self.executor,
            witness=self.pool_ledger,
        )

    @cached_property
    def executor(self) -> NodeExecutor:
        """Runs nodes as the pool around this process permits."""
        return node_executor(SystemClock().monotonic)

    @cached_property
    def publisher(self) -> Publisher:
        """Sends leases and nudges for this app."""
        return Publisher(self.app, self.config, monotonic=SystemClock().monotonic)

    @cached_property
    def dispatcher(self) -> Dispatcher:
        """Claims and publishes for this app."""
        return Dispatcher(self.engine, self.publisher)

    @cached_property
    def nudged(self) -> Windows:
        """How often this process answers nudges with scans: ever less often while they come and find nothing."""
        return Windows(SystemClock().monotonic, crowd=1)

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

    def _option(self, key: Any) -> str | None:
        """The option that a key of the app's configuration means, if it is ours: under a namespace such as Django's
        `CELERY`, `CELERY_DOCKET_QUEUE` is `docket_queue`."""
        if not isinstance(key, str):
            return None
        prefix = f"{self.app.namespace}_{PREFIX}".upper() if self.app.namespace else PREFIX
        if key.startswith(prefix):
            return PREFIX + key[len(prefix) :].lower()
        return key if key.startswith(PREFIX) else None

    def stopping_now(self, **_signal: Any) -> None:
        """Tells the vehicles of this worker to leave in good order."""
        self.stopping.raise_()

    def _finalized_later(self, sender: Celery, **_signal: Any) -> None:
        """A signal swallows errors: worker, beat, commands and verbs meet a wrong option again and refuse it."""
        try:
            self._finalized(sender)
        except ConfigError as error:
            logger.debug("app %r is not ready for docket: %s", sender.main, error)

    def _beat_starts(self, sender: Any, **_signal: Any) -> None:
        """Ends a beat whose app has a wrong option: without its tick it would run on and do nothing for us."""
        if sender.app is not self._app:
            return
        try:
            _ = self.config
        except ConfigError as error:
            raise SystemExit(f"docket_celery: {error}") from error
        make_known(sender.app, self.config)
        schedule.see_to(sender, self.config)

    def _worker_starts(self, instance: Any, options: dict[str, Any], **_signal: Any) -> None:
        """Before the worker selects its queues. One that is not told to take leases need not know them: older versions
        of Celery would let it take all that are known."""
        if instance.app is not self._app:
            return
        try:
            if self.config.queue in str_to_list(options.get("queues") or ()):
                make_known(instance.app, self.config)
        except ConfigError as error:
            raise SystemExit(f"docket_celery: {error}") from error

    def _pool_process_ends(self, **_signal: Any) -> None:
        """It runs no exit handlers, and the thread that would send a later nudge ends with it."""
        if "publisher" in vars(self):
            self.publisher.flush()

    def _configured_anew(self, sender: Celery, **_signal: Any) -> None:
        """What was set up by settings that hold no more, or could not be for a wrong one, is set up again."""
        if self._was_finalized:
            self._finalized_later(sender)

    def _finalized(self, app: Celery) -> None:
        try:
            configure(app, self)
            schedule.add_entries(app, self.config)
        finally:
            self._was_finalized = True
