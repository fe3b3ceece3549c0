"""Gathers the facts that `doctor` judges: asks database and broker, for a bounded time, and reads the app.

Changes nothing. What cannot be reached becomes a fact too: nothing here raises for it.
"""

from __future__ import annotations

from typing import Any

from celery import Celery

from docket_celery.errors import ConfigError, SchemaMismatch, StoreError, StoreUnavailable
from docket_celery.storage.contracts.fleet import Backlog, Listening
from docket_celery.storage.contracts.upkeep import Upkeep
from docket_celery.storage.postgres.listener import listening_state
from docket_celery.storage.postgres.upkeep import upkeep
from docket_celery.worker.doctor import Facts
from docket_celery.worker.messages import is_accepted, written_in
from docket_celery.worker.publisher import VEHICLE, bounded_connection
from docket_celery.worker.setup import Docket
from docket_celery.worker.tasks import options


def examine(docket: Docket) -> Facts:
    """Every fact, within some seconds however dead the servers are."""
    app, config = docket.app, docket.config
    app.finalize()
    database, schema, backlog = _database(docket)
    conf = app.conf
    serializer = written_in(conf.task_serializer)
    own = options(config, serializer)
    router = app.amqp.router
    transport, ack_connections = transport_of(app)
    return Facts(
        config=config,
        database=database,
        schema=schema,
        broker=_broker(app),
        backlog=backlog,
        upkeep=_upkeep(docket) if backlog is not None else None,
        listener=_listener(docket) if config.listen and backlog is not None else None,
        prefetch_multiplier=int(conf.worker_prefetch_multiplier),
        prefetch_disabled=bool(conf.get("worker_disable_prefetch", False)),
        early_acknowledging=sorted(
            name for name, task in app.tasks.items() if not name.startswith(("celery.", *own)) and not task.acks_late
        ),
        strays=[
            f"{name} {option}: {getattr(app.tasks[name], option)!r}, not {wanted!r}"
            for name, settings in own.items()
            for option, wanted in settings.items()
            if getattr(app.tasks[name], option) != wanted
        ],
        refused_content=None if is_accepted(conf.accept_content, serializer) else sorted(conf.accept_content),
        routed=[name for name in own if router.lookup_route(name)],
        transport=transport,
        longest_hold=own[VEHICLE]["time_limit"],
        ack_connections=ack_connections,
        is_green=any(kind in str(conf.worker_pool) for kind in ("gevent", "eventlet")),
    )


def _database(docket: Docket) -> tuple[str | None, str | None, Backlog | None]:
    """What is wrong with the database, what with the schema, and the totals."""
    try:
        docket.check_schema()
    except (ConfigError, StoreUnavailable) as error:
        return str(error), None, None
    except SchemaMismatch as error:
        return None, str(error), None
    try:
        return None, None, docket.fleet.backlog(orphan_ttl=docket.engine.orphan_ttl)
    except StoreError as error:
        return str(error), None, None


def _upkeep(docket: Docket) -> Upkeep | None:
    try:
        return upkeep(docket.database_url, schema=docket.config.schema)
    except StoreError:
        return None


def _listener(docket: Docket) -> Listening | None:
    try:
        return listening_state(docket.database_url, schema=docket.config.schema)
    except StoreError:
        return None


def transport_of(app: Celery) -> tuple[str | None, int | None]:
    """The kind of broker and, where Redis emulates acknowledgements, how many connections they share."""
    try:
        connection: Any = bounded_connection(app)
        transport = connection.transport
    except Exception:  # A transport that is not installed, or none: said when it is asked.
        return None, None
    options = connection.transport_options
    if transport.driver_type != "redis" or not options.get("ack_emulation", True):
        return transport.driver_type, None
    return "redis", int(options.get("max_connections", transport.Channel.max_connections))


def _broker(app: Celery) -> str | None:
    """Connects and opens a channel, which makes Redis answer a ping too."""
    try:
        connection: Any = bounded_connection(app)
    except Exception as error:  # A transport that is not installed, or none.
        return f"{type(error).__name__}: {error}"
    try:
        connection.connect()
        connection.default_channel.close()
    except Exception as error:
        return f"{connection.as_uri()}: {type(error).__name__}: {error}"
    finally:
        connection.collect()
    return None
