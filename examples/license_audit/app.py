"""The Celery application of the audit, configured from the environment as a deployment would.

LICENSE_AUDIT_DATABASE_URL   PostgreSQL, the only authority
LICENSE_AUDIT_BROKER_URL     any broker of Celery's; `filesystem:///directory` needs no server at all
"""

from __future__ import annotations

import os
from typing import Final

from celery import Celery

from docket_celery import Docket
from examples.license_audit import ledger

DATABASE_VARIABLE: Final = "LICENSE_AUDIT_DATABASE_URL"
BROKER_VARIABLE: Final = "LICENSE_AUDIT_BROKER_URL"
NODE_MODULE: Final = "examples.license_audit.nodes"

broker = os.environ.get(BROKER_VARIABLE, "redis://127.0.0.1:6379/0")
app = Celery("license_audit", broker=broker, include=[NODE_MODULE])
app.conf.update(
    docket_database_url=os.environ.get(DATABASE_VARIABLE, "postgresql://127.0.0.1:5432/license_audit"),
    docket_node_modules=[NODE_MODULE],
    docket_orphan_ttl=5.0,  # Short, so that a try-out sees a killed worker's runs come back soon.
    docket_drain_max_elapsed=2.0,
    worker_prefetch_multiplier=1,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)
if broker.startswith("filesystem://"):
    folder = broker.removeprefix("filesystem://")
    app.conf.broker_url = "filesystem://"
    app.conf.broker_transport_options = {
        "data_folder_in": f"{folder}/messages",
        "data_folder_out": f"{folder}/messages",
        "processed_folder": f"{folder}/processed",
        "control_folder": f"{folder}/control",
    }

docket = Docket(app)
docket.hooks.add(ledger.note)
