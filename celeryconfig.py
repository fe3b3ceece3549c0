"""A complete configuration for a Celery app that uses docket: copy it, and change the two addresses.

Load it with `app.config_from_object("celeryconfig")`. Only `docket_database_url` has no default; what is commented out
shows its default. Django projects write the same keys in capitals with the prefix `CELERY_`.
"""

import os

# -- Celery's own ------------------------------------------------------------------------------------------------------

# The broker carries leases and ticks, nothing that could be lost: Redis, RabbitMQ, whatever the fleet has.
broker_url = os.environ.get("BROKER_URL", "redis://127.0.0.1:6379/0")
broker_connection_retry_on_startup = True

# Docket needs no result backend; the app's other tasks may have one.
task_ignore_result = True

# A worker reserves no more than it runs, so that no lease waits behind a busy process while another one idles.
worker_prefetch_multiplier = 1

# The app's own tasks may be routed and limited as they like. Docket's tasks carry their queue, late acknowledgement and
# time limits themselves: global settings do not reach them, and theirs do not reach other tasks.
task_default_queue = "celery"
task_routes: dict[str, dict[str, str]] = {}

# Beat gets docket's tick by itself (see docket_install_beat); entries of the app's own go here.
beat_schedule: dict[str, dict[str, object]] = {}

# -- docket: where the truth is ----------------------------------------------------------------------------------------

docket_database_url = os.environ.get("DOCKET_DATABASE_URL", "postgresql://127.0.0.1:5432/docket")
# docket_schema = "docket"

# -- docket: queue and pace --------------------------------------------------------------------------------------------

# Workers drain this queue: `celery -A proj worker -Q docket`. They take the tick queue (`docket.ticks`) along.
# docket_queue = "docket"

# Seconds between two ticks. The tick is the guarantee; nudges make most runs start at once.
# docket_poll_interval = 1

# "auto" bounds leases by the slots that live workers have registered; a number replaces them.
# docket_max_in_flight = "auto"

# "direct": a slot that is free claims the next run itself. "broker": each run gets a message.
# docket_refill = "direct"

# Whether Docket(app) adds its tick, and its pruning, to the beat schedule.
# docket_install_beat = True

# Who sends ticks and prunings: "beat", or "worker" for fleets without one: then the workers' own timers do.
# docket_tick = "beat"

# Whether commits tell the workers over PostgreSQL's LISTEN and NOTIFY that a run is due: for starts by processes that
# have no broker and inside transactions of their own, which otherwise wait for the tick. One worker at a time hears.
# Not behind a pooler. The same value for workers and for those who start runs.
# docket_listen = False

# -- docket: how long, how often ---------------------------------------------------------------------------------------

# Seconds without a sign of life after which a claim may be taken over. Claims of living workers are renewed.
# docket_orphan_ttl = 60.0
# docket_lease_renewal = True

# A run that was claimed this often without any progress is halted (poisoned) until an operator retries it.
# docket_max_claim_attempts = 3

# The same for runs that were handed back unexecuted, because no worker here can read or compile them; the next try
# waits for one to two backoffs. A run that is only too long for this host (see docket_max_attempt_elapsed) is never
# halted for it: its wait begins at the backoff and doubles up to the cap.
# docket_max_claim_abandons = 5
# docket_abandon_backoff = 30.0
# docket_abandon_backoff_cap = 3600.0

# Seconds that one attempt of a node may take on this host.
# docket_max_attempt_elapsed = 300.0

# How much one claim may do before others get a turn, and how long one vehicle task may go on.
# docket_drain_max_moments = None
# docket_drain_max_elapsed = 30.0
# docket_vehicle_max_elapsed = 300.0

# -- docket: how long things are kept ----------------------------------------------------------------------------------

# Seconds for which a run is kept after its end, and an event of an ended run after it happened. None keeps them for
# ever. Runs that have not ended are never touched.
# docket_run_retention = None
# docket_event_retention = None

# Seconds between two times of pruning, which beat starts when one of the two is set.
# docket_prune_interval = 300

# -- docket: graphs and values -----------------------------------------------------------------------------------------

# Modules whose functions may be nodes. By default, those that Celery itself loads.
# docket_node_modules = ["proj.graphs"]

# A bound on supersteps for graphs with cycles that name none themselves.
# docket_max_supersteps = None

# Bytes that one value of a run's state may take.
# docket_max_value_bytes = 16777216

# "required" makes every verb ask for a tenant: docket.for_tenant("acme").start_run(...).
# docket_tenant_mode = "none"

# Whose runs are claimed first: "age", those that have been due longest; "tenants", one of each tenant in turn, so that
# nobody's backlog keeps the others waiting. The default is "tenants" where tenants are required, otherwise "age".
# docket_claim_policy = None

# With "tenants": how many runs of one tenant may be out at a time, those that wait for a worker included. None for any.
# docket_tenant_cap = None
