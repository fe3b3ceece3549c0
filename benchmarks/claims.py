"""What a claim costs: claims per second beside long backlogs and histories, pages read, claims of fifty leases,
exchanges and HOT updates.

    python -m benchmarks.claims [--quick] [--seconds 3] [--json FILE]

Starts an embedded PostgreSQL (fsync on) of its own. Claimers are processes that scan for one lease at a time.
Pages are those of the product's own statement, explained before and after the claims of the same row: the cost of
a claim should depend on neither the backlog, nor the history, nor the claims before it.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any, Literal

import psycopg
from msgspec.structs import replace
from psycopg.rows import dict_row
from psycopg.types.numeric import Float8, Int8
from rich.console import Console
from rich.table import Table

from benchmarks.app import chain, make_app
from benchmarks.command import conclude, parser
from benchmarks.exchanges import counted
from docket_celery import Docket
from docket_celery.embedded.postgres import EmbeddedPostgres
from docket_celery.storage.contracts.claims import ClaimPolicy, Demand
from docket_celery.storage.postgres import migrate, open_storage
from docket_celery.storage.postgres.queries import Queries

TENANTS = 1_000
TTL = timedelta(minutes=10)
Order = Literal["age", "tenants"]
STATEMENTS: dict[Order, tuple[str, str]] = {
    "age": ("lease_ready", "CTE next"),
    "tenants": ("claim_due_by_tenant", "CTE chosen"),
}
"""What leases one run in each order, and which part of its plan selects and locks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """How many runs are due and how many have ended."""

    due: int
    done: int = 0

    def __str__(self) -> str:
        return f"{self.due:,} due" + (f", {self.done:,} done" if self.done else "")


FULL = [Backlog(due=10_000), Backlog(due=100_000), Backlog(due=1_000_000), Backlog(due=10_000, done=1_000_000)]
QUICK = [Backlog(due=2_000), Backlog(due=20_000), Backlog(due=2_000, done=20_000)]

_OWNERS = """
    INSERT INTO docket.graph_versions (tenant, graph_id, graph_hash, document, published_at)
    SELECT 'tenant-' || n, 'order', 'hash', '{}', now() FROM generate_series(0, %s - 1) n
"""
_RUNS = """
    INSERT INTO docket.runs (id, tenant, graph_id, graph_hash, status, step, checkpoint_seq, event_seq, checkpoint_type,
                             state, started_at, updated_at, finished_at, wake_at)
    SELECT %(status)s || n, 'tenant-' || n %% %(tenants)s, 'order', 'hash', %(status)s, 1, 1, 1, 'run_initialized',
           '{"v":1}', now(), now(), CASE WHEN %(status)s = 'done' THEN now() END,
           CASE WHEN %(status)s = 'running' THEN now() - interval '1 millisecond' * n END
    FROM generate_series(1, %(count)s) n
"""


CLAIMERS = (1, 4)
SETTINGS = {"shared_buffers": "4GB", "max_wal_size": "16GB", "checkpoint_timeout": "1h"}
"""So that no checkpoint falls into a sample but those that are asked for, and the cache has room for all of it."""
_INTO_THE_CACHE = """
    SELECT pg_prewarm(oid) FROM pg_class WHERE relnamespace = 'docket'::regnamespace AND relkind IN ('r', 'i')
"""
BATCH = 50
"""Leases of one large claim."""
WARM, TIMED = 8, 30
"""Such claims before the clock begins, while the session makes its plans; and by the clock."""
HOT_COMMITS = 1_000


def measure(
    backlogs: list[Backlog],
    seconds: float,
    *,
    claimers: Sequence[int] = CLAIMERS,
    batches: tuple[int, int] = (WARM, TIMED),
    commits: int = HOT_COMMITS,
) -> list[dict[str, Any]]:
    """Claims per second and pages of every backlog, order and number of claimers; HOT updates among so many commits."""
    rows = []
    with (
        tempfile.TemporaryDirectory(prefix="docket-benchmark-") as home,
        EmbeddedPostgres.start(Path(home), settings=SETTINGS) as server,
    ):
        filled = {f"backlog_{number}": backlog for number, backlog in enumerate(backlogs)}
        for name, backlog in filled.items():
            migrated = server.create_database(name)
            migrate.upgrade(migrated, "docket")
            fill(migrated, backlog)
            for order, many in product(STATEMENTS, claimers):
                copy = f"{name}_{order}_{many}"
                url = server.create_database(copy, template=name)
                rows.append(_measured(url, backlog, order, many, seconds))
                drop(server.url("postgres"), copy)
        for order in STATEMENTS:
            rows += _in_batches(server, filled, order, *batches)
        rows += exchanges(server) + hot_share(server, commits)
    return rows


def fill(url: str, backlog: Backlog) -> None:
    """Runs of a thousand tenants; analysed, as any table is that has stood for a minute."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_OWNERS, [TENANTS])
        for status, count in (("done", backlog.done), ("running", backlog.due)):
            connection.execute(_RUNS, {"status": status, "count": count, "tenants": TENANTS})
        connection.execute("VACUUM ANALYZE docket.runs")
        connection.execute("CHECKPOINT")


def drop(url: str, name: str) -> None:
    """Makes room on the disk."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())


def _measured(url: str, backlog: Backlog, order: Order, claimers: int, seconds: float) -> dict[str, Any]:
    first = pages(url, order)
    begin = time.monotonic() + 2.0 + claimers * 0.5
    with ProcessPoolExecutor(claimers, mp_context=multiprocessing.get_context("spawn")) as pool:
        counts = list(
            pool.map(claim_for, [url] * claimers, [order] * claimers, [begin] * claimers, [seconds] * claimers)
        )
    return {
        "backlog": str(backlog),
        "order": order,
        "claimers": claimers,
        "claims_per_second": round(sum(count / elapsed for count, elapsed in counts), 1),
        "claims": sum(count for count, _ in counts),
        "pages_first": first,
        "pages_last": pages(url, order),
    }


def _in_batches(
    server: EmbeddedPostgres, filled: Mapping[str, Backlog], order: Order, warm: int, timed: int
) -> list[dict[str, Any]]:
    """What one claim of many leases takes beside each backlog, in turns: the medians of `timed` rounds, after `warm`.

    The clock begins right after a checkpoint, when the first change of each page logs the whole page. All is in the
    server's cache, as are the pages of runs that were started a while ago; those of a mere copy are not.
    """
    urls = {name: server.create_database(f"batches_of_{name}", template=name) for name in filled}
    for url in urls.values():
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION pg_prewarm")
            connection.execute(_INTO_THE_CACHE)
    claimers = {name: _Claimer(url, order) for name, url in urls.items()}
    for _ in range(warm):
        for claimer in claimers.values():
            claimer.claim()
    server.tool("psql", "--command", "CHECKPOINT", server.url("postgres"))
    os.sync()  # Or the system writes gigabytes of copies out while the clock runs.
    claims: dict[str, list[tuple[float, int]]] = {name: [] for name in filled}
    for _ in range(timed):
        for name, claimer in claimers.items():
            claims[name].append(claimer.claim())
    for name, claimer in claimers.items():
        claimer.close()
        drop(server.url("postgres"), f"batches_of_{name}")
    return [
        {
            "backlog": str(filled[name]),
            "order": order,
            "leases": BATCH,
            "milliseconds": round(statistics.median(span for span, _ in made) * 1e3, 2),
            "log_per_lease": round(statistics.mean(written for _, written in made) / BATCH),
        }
        for name, made in claims.items()
    ]


class _Claimer:
    """Claims many leases at a time in one database, where nobody else is at work."""

    def __init__(self, url: str, order: Order) -> None:
        self._storage = open_storage(url)
        self._connection = psycopg.connect(url, autocommit=True)
        self._policy = replace(_policy(order, 0.4), limit=BATCH)

    def claim(self) -> tuple[float, int]:
        """What one claim took: seconds, and bytes of log."""
        written, began = _written(self._connection), time.perf_counter()
        leases = self._storage.runs.claim_due(self._policy).leases
        span = time.perf_counter() - began
        assert len(leases) == BATCH, len(leases)
        return span, _written(self._connection) - written

    def close(self) -> None:
        self._connection.close()
        self._storage.runs._database.sessions.close()  # type: ignore[attr-defined]


def _written(connection: psycopg.Connection) -> int:
    row = connection.execute("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint").fetchone()
    assert row is not None
    return int(row[0])


def claim_for(url: str, order: Order, begin: float, seconds: float) -> tuple[int, float]:
    """Claims one run after the other, from `begin` on; how many leases came of it, and in how many seconds."""
    storage = open_storage(url)
    chance = random.Random()
    storage.runs.claim_due(_policy(order, chance.random()))
    time.sleep(max(0.0, begin - time.monotonic()))
    count, started = 0, time.monotonic()
    while time.monotonic() - started < seconds:
        leases = storage.runs.claim_due(_policy(order, chance.random())).leases
        if not leases:
            break
        count += len(leases)
    return count, time.monotonic() - started


def _policy(order: Order, fraction: float) -> ClaimPolicy:
    return ClaimPolicy(limit=1, orphan_ttl=TTL, max_claim_attempts=3, order=order, fraction=fraction)


def pages(url: str, order: Order) -> dict[str, int]:
    """Pages that one claim touches in all, and those of them that select and lock."""
    parameters = {
        "now": None, "token": None, "gate": "open", "demanded": False, "interval": TTL, "slots": None,
        "limit": Int8(1), "ttl": TTL, "max_attempts": Int8(3), "delivery": "lease", "preference": None,
        "poison_reason": "x", "fraction": Float8(random.random()), "cap": None,
        "ready_from": None, "claimed_from": None,
    }  # fmt: skip
    statement, selecting = STATEMENTS[order]
    explain = b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + Queries("docket")[statement]
    with psycopg.connect(url, row_factory=dict_row) as connection:
        row = connection.execute(explain, parameters).fetchone()
        connection.rollback()
    assert row is not None
    plan = row["QUERY PLAN"][0]["Plan"]
    (selection,) = [node for node in _nodes(plan) if node.get("Subplan Name") == selecting]
    return {"selection": _buffers(selection), "total": _buffers(plan)}


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)


def _buffers(node: dict[str, Any]) -> int:
    return int(node["Shared Hit Blocks"] + node["Shared Read Blocks"])


def exchanges(server: EmbeddedPostgres) -> list[dict[str, Any]]:
    """Exchanges of each operation on a warm connection."""
    migrate.upgrade(server.create_database("exchanges"), "docket")
    with counted(server.port) as proxy:
        url = server.url("exchanges").replace(f":{server.port}", f":{proxy.port}")
        docket = Docket.of(make_app(url, "memory://"))
        assert docket is not None
        short, long = docket.save_graph(chain(10)), docket.save_graph(chain(60))
        runs = docket.storage.runs
        found: dict[str, int | float] = {}
        for _ in range(3):  # The last round counts: the first ones prepare the statements.
            for gate in ("tick", "nudge", "refill"):
                demand = Demand(gate=gate, slots=100)
                for order in STATEMENTS:
                    policy = ClaimPolicy(limit=1, orphan_ttl=TTL, max_claim_attempts=3, demand=demand, order=order)
                    found[f"claim_due, {gate}, {order}"] = proxy.of(lambda policy=policy: runs.claim_due(policy))
            found["start_run"] = proxy.of(lambda: docket.start_run(short))
            (lease,) = runs.claim_due(_policy("age", 0.0)).leases
            found["redeem_claim"] = proxy.of(lambda lease=lease: runs.redeem_claim(lease, token="private"))
            found["refresh_claims"] = proxy.of(lambda lease=lease: runs.refresh_claims([(lease.run_id, "private")]))
            found["release_claim"] = proxy.of(lambda lease=lease: runs.release_claim(lease.run_id, "private"))
            few = proxy.of(docket.drain)
            docket.start_run(long)
            found["one moment of a drain"] = (proxy.of(docket.drain) - few) / 50
            run = docket.start_run(short)
            found["cancel_run"] = proxy.of(lambda run=run: docket.cancel_run(run.id))
    return [{"operation": name, "exchanges": count} for name, count in found.items()]


def hot_share(server: EmbeddedPostgres, commits: int) -> list[dict[str, Any]]:
    """The share of HOT updates among claim-keeping commits, of runs of few and of many nodes."""
    rows = []
    for nodes in (5, 100):
        url = server.create_database(f"hot_{nodes}")
        migrate.upgrade(url, "docket")
        docket = Docket.of(make_app(url, "memory://"))
        assert docket is not None
        ref = docket.save_graph(chain(nodes))
        count = max(commits // nodes, 1)
        for _ in range(count):
            docket.start_run(ref)
        docket.drain()
        docket.storage.runs._database.sessions.close()
        retaining, other = (nodes - 1) * count, 2 * count  # all commits but the last; taking the run, and the last
        updates, hot = _updates(url, retaining + other)
        redeemed = updates - retaining - other  # A run that was taken in two statements: HOT as well.
        share = round((hot - redeemed) / retaining, 4)
        rows.append({"nodes": nodes, "retaining": retaining, "updates": updates, "hot_share": share})
    return rows


def _updates(url: str, expected: int) -> tuple[int, int]:
    """All updates of run rows and the HOT ones, once the server has heard of as many as are expected."""
    query = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE schemaname = 'docket' AND relname = 'runs'"
    with psycopg.connect(url, autocommit=True) as connection:
        while True:
            row = connection.execute(query).fetchone()
            assert row is not None
            if row[0] >= expected:
                return row
            time.sleep(0.1)


def report(rows: list[dict[str, Any]]) -> None:
    """Prints the figures as tables."""
    console = Console(width=120)
    claims = Table("backlog", "order", "claimers", "claims/s", "pages first (all)", "pages last (all)", title="claims")
    for row in rows:
        if "claimers" in row:
            first, last = (f"{row[k]['selection']} ({row[k]['total']})" for k in ("pages_first", "pages_last"))
            speed = f"{row['claims_per_second']:,.0f}"
            claims.add_row(row["backlog"], row["order"], str(row["claimers"]), speed, first, last)
    console.print(claims)
    batches = Table("backlog", "order", "ms", "log, bytes/lease", title=f"claims of {BATCH} leases")
    for row in rows:
        if "leases" in row:
            batches.add_row(row["backlog"], row["order"], f"{row['milliseconds']:g}", f"{row['log_per_lease']:,}")
    console.print(batches)
    trips = Table("operation", "exchanges", title="exchanges")
    for row in rows:
        if "operation" in row:
            trips.add_row(row["operation"], f"{row['exchanges']:g}")
    console.print(trips)
    hot = Table("nodes of a run", "updates", "HOT", title="commits that keep their claim")
    for row in rows:
        if "hot_share" in row:
            hot.add_row(str(row["nodes"]), f"{row['retaining']:,}", f"{row['hot_share']:.1%}")
    console.print(hot)


def main() -> None:
    """Measures, prints tables, and writes the JSON file if asked to."""
    arguments = parser(__doc__)
    arguments.add_argument("--quick", action="store_true", help="small backlogs, a second each")
    arguments.add_argument("--seconds", type=float, default=None, help="how long each claimer claims")
    options = arguments.parse_args()
    rows = measure(QUICK if options.quick else FULL, options.seconds or (1.0 if options.quick else 3.0))
    conclude(rows, report, options.json)


if __name__ == "__main__":
    main()
