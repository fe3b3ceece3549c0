"""How long a small tenant waits behind a hot one.

    python -m benchmarks.fairness [--runs 1000] [--json FILE]

A hot tenant has started 60 % of all runs, before eight small tenants started the rest. One slot drains them, once in
the order of age and once with tenants taking turns. Reported is how far the drain had come, in percent of all runs,
when the median and the last run of the small tenants were done.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.app import chain, make_app
from benchmarks.command import conclude, parser
from docket_celery import Docket
from docket_celery.embedded.postgres import EmbeddedPostgres
from docket_celery.run.document import RunStatus
from docket_celery.storage.postgres import migrate
from docket_celery.telemetry.hook import Fact, MomentCommitted
from docket_celery.vehicle import Vehicle

HOT_SHARE = 0.6
SMALL = [f"small-{number}" for number in range(1, 9)]
RUNS = 1_000


def measure(runs: int) -> list[dict[str, Any]]:
    """One row for each order."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="docket-benchmark-") as home, EmbeddedPostgres.start(Path(home)) as server:
        for policy in ("age", "tenants"):
            url = server.create_database(f"fairness_{policy}")
            migrate.upgrade(url, "docket")
            ended = drained(url, policy, runs)
            waits = [100 * (place + 1) / len(ended) for place, tenant in enumerate(ended) if tenant != "hot"]
            rows.append({"order": policy, "runs": len(ended), "median": statistics.median(waits), "last": max(waits)})
    return rows


def drained(url: str, policy: str, runs: int) -> list[str]:
    """The tenants of all runs, in the order in which these ended."""
    app = make_app(url, "memory://")
    app.conf.docket_claim_policy = policy
    docket = Docket.of(app)
    assert docket is not None
    hot = int(runs * HOT_SHARE)
    backlog = {"hot": hot, **dict.fromkeys(SMALL, max((runs - hot) // len(SMALL), 1))}
    ended: list[str] = []

    def note(fact: Fact) -> None:
        if isinstance(fact, MomentCommitted) and fact.moment.run.status is RunStatus.DONE:
            ended.append(str(fact.tenant))

    for tenant, count in backlog.items():
        verbs = docket.for_tenant(tenant)
        verbs.start_runs(verbs.save_graph(chain(1)), [{}] * count)
    docket.hooks.add(note)
    while (taken := docket.dispatcher.refill()) is not None:
        Vehicle(docket.engine).drive(taken, asked_at=docket.engine.clock.monotonic())
    assert sorted(ended) == sorted(tenant for tenant, count in backlog.items() for _ in range(count))
    return ended


def report(rows: list[dict[str, Any]]) -> None:
    """Prints the figures as a table."""
    table = Table("order", "runs", "median of the small ones done at", "last of them", title="behind a hot tenant")
    for row in rows:
        table.add_row(row["order"], f"{row['runs']:,}", f"{row['median']:.0f} %", f"{row['last']:.0f} %")
    Console().print(table)


def main() -> None:
    """Measures, prints a table, and writes the JSON file if asked to."""
    arguments = parser(__doc__)
    arguments.add_argument("--runs", type=int, default=RUNS)
    options = arguments.parse_args()
    conclude(measure(options.runs), report, options.json)


if __name__ == "__main__":
    main()
