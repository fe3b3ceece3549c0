"""An app with queues, routes, limits, a beat entry and a result backend of its own; docket is added where asked for."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery
from kombu import Exchange, Queue

from docket_celery import Docket


def make_shop(broker_url: str, database_url: str, *, with_docket: bool) -> Celery:
    app = Celery("shop", broker=broker_url, backend=broker_url.removesuffix("/0") + "/1")
    app.conf.update(
        include=["proj.shop_tasks", "proj.nodes"],
        broker_connection_retry_on_startup=True,
        task_queues=[
            Queue("mail", Exchange("shop"), routing_key="mail"),
            Queue("reports", Exchange("shop"), "reports"),
        ],
        task_default_queue="mail",
        task_default_exchange="shop",
        task_default_routing_key="mail",
        task_routes={"proj.shop_tasks.total": {"queue": "reports"}},
        task_acks_late=False,
        task_time_limit=20,
        task_soft_time_limit=15,
        task_compression="gzip",
        task_track_started=True,
        result_expires=900,
        result_extended=True,
        worker_prefetch_multiplier=3,
        timezone="Europe/Berlin",
        beat_schedule={"nightly": {"task": "proj.shop_tasks.nightly", "schedule": 1.0, "args": ["due"]}},
    )
    if with_docket:
        app.conf.docket_database_url = database_url
        Docket(app)
    return app


def settings_of(app: Celery) -> dict[str, Any]:
    """Every setting by its name, the defaults too, in a form that can be compared."""
    app.loader.import_default_modules()
    app.finalize()
    return {key: repr(value) for key, value in app.conf.table(with_defaults=True, censored=False).items()}


if "PROJ_SHOP" in os.environ:
    app = make_shop(
        os.environ["PROJ_BROKER_URL"], os.environ["PROJ_DATABASE_URL"], with_docket=os.environ["PROJ_SHOP"] == "docket"
    )
