"""The app. Everything that differs between tests comes from the environment."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from typing import Any

from celery import Celery

from docket_celery import Docket
from docket_celery.worker import tasks


def make_app(database_url: str, broker_url: str, **settings: Any) -> Celery:
    release = ["proj.new_nodes"] if os.environ.get("PROJ_RELEASE") == "new" else []
    app = Celery("proj", broker=broker_url, include=["proj.nodes", "proj.long_nodes", "proj.tasks", *release])
    app.conf.broker_connection_retry_on_startup = True
    app.conf.worker_prefetch_multiplier = 1
    app.conf.docket_database_url = database_url
    behind = timedelta(seconds=settings.pop("proj_clock_behind", 0))
    true_now = app.now
    app.now = lambda: true_now() - behind
    settings.pop("proj_stop_margin", None)
    app.conf.update(settings)
    Docket(app)
    return app


if "PROJ_DATABASE_URL" in os.environ:
    settings = json.loads(os.environ["PROJ_SETTINGS"])
    # In a process of the fleet only: the test's own process has other tests to come.
    tasks.STOP_MARGIN = settings.get("proj_stop_margin", tasks.STOP_MARGIN)
    app = make_app(os.environ["PROJ_DATABASE_URL"], os.environ["PROJ_BROKER_URL"], **settings)
