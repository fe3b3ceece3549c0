"""`python -m examples.license_audit`: the whole audit on a fleet of its own, with a worker killed on the way."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import re
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from docket_celery import DocketError
from examples.license_audit import checks, ledger, report, verdicts
from examples.license_audit.fleet import APP, QUEUE, Fleet
from examples.license_audit.sabotage import kill_inside_a_node
from examples.license_audit.watch import Progressed, follow

console = Console(highlight=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the audit and returns the exit status: 0 only when the books balance."""
    options = parse(arguments)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="license-audit-") as directory,
            Fleet(Path(directory), options.database_url, options.broker_url, options.concurrency) as fleet,
        ):
            status = 1
            try:
                status = audit(fleet, options)
            except (DocketError, EOFError, OSError, RuntimeError) as error:
                console.print(f"\nFAILED: {error or type(error).__name__}", markup=False)
            if status:
                console.print(f"logs: {fleet.keep_logs(options.report / 'logs')}")
            return status
    except KeyboardInterrupt:
        console.print("\ninterrupted; every process that was started here has been stopped")
        return 130


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.license_audit", description=__doc__)
    parser.add_argument("--interactive", action="store_true", help="ask for verdicts instead of applying the policy")
    parser.add_argument("--database-url", help="a PostgreSQL of your own, instead of an embedded one")
    parser.add_argument("--broker-url", help="a broker of your own, instead of an embedded Redis")
    parser.add_argument("--workers", type=_at_least_one, default=2, help="Celery workers (default 2)")
    parser.add_argument("--concurrency", type=_at_least_one, default=2, help="processes of each worker (default 2)")
    parser.add_argument("--report", type=Path, default=Path("license_audit_report"), help="where to write the report")
    parser.add_argument("--limit", type=_at_least_one, help="audit only so many distributions")
    parser.add_argument("--no-kill", action="store_true", help="let every worker live")
    parser.add_argument("--no-faults", action="store_true", help="rehearse no flaky disks")
    parser.add_argument("--keep", action="store_true", help="keep everything running afterwards, until Ctrl-C")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds after which to give up (default 300)")
    return parser.parse_args(arguments)


def audit(fleet: Fleet, options: argparse.Namespace) -> int:
    """From nothing to the report."""
    began = time.monotonic()
    console.print("starting database and broker ...")
    fleet.start_servers()
    for note in fleet.notes:
        console.print(f"note: {note}")
    os.environ.update(fleet.environment)
    fleet.command("docket", "migrate")
    from examples.license_audit.app import docket  # Reads its configuration from the environment just completed.
    from examples.license_audit.graph import graph

    reference = docket.save_graph(graph)
    found = distributions()[: options.limit]
    run_ids = [
        docket.start_run(reference, {"distribution": name, "site": site, "rehearse_faults": not options.no_faults}).id
        for name, site in found
    ]
    console.print(f"{len(run_ids)} runs are durable, and no worker exists yet; starting {options.workers} and beat ...")
    if not options.no_faults:
        console.print("rehearsal: the disk under one distribution in five fails at its first reading")
    console.print("verdicts: " + ("asked here" if options.interactive else verdicts.POLICY))
    fleet.start_beat()
    for _ in range(options.workers):
        fleet.start_worker()
    saboteur = Saboteur(fleet, enabled=not options.no_kill)
    follow(
        docket,
        run_ids,
        path=fleet.ledger,
        console=console,
        answer=verdicts.by_asking(console) if options.interactive else verdicts.by_policy,
        interactive=options.interactive,
        meddle=saboteur,
        timeout=options.timeout,
    )
    accounts = checks.settle(docket, run_ids, ledger.read(fleet.ledger))
    entries = [docket.fetch_run(run_id).fields["entry"] for run_id in run_ids]
    wall = time.monotonic() - began
    context = {
        "environment": sys.prefix,
        "interpreter": f"{platform.python_implementation()} {platform.python_version()}",
        "graph": f"{reference.graph_id} {reference.graph_hash}",
        "made": time.strftime("%Y-%m-%d %H:%M:%S %Z"),
    }
    page, table = report.write(entries, options.report, context)
    report.show(entries, console)
    status = summarise(accounts, saboteur, wall)
    console.print(f"report: {page} and {table}")
    look_around(fleet, run_ids[0], keep=options.keep)
    return status


class Saboteur:
    """Kills one worker inside a node once a third of the runs have ended, and starts a replacement."""

    def __init__(self, fleet: Fleet, *, enabled: bool) -> None:
        self.caught: dict[str, Any] | None = None
        self.enabled = enabled
        self._fleet = fleet

    def __call__(self, looks: Progressed) -> None:
        fallen = self._fleet.fallen()
        if fallen is not None:
            raise RuntimeError(f"{fallen.name} ended with status {fallen.exit_code} by itself:\n{fallen.tail()}")
        if self.enabled and self.caught is None and looks.ended * 3 >= looks.total:
            self.caught = kill_inside_a_node(self._fleet)
            if self.caught is not None:
                self._fleet.start_worker()
                console.print(
                    f"killed {self.caught['worker']} (pid {self.caught['worker_pid']}, SIGKILL) inside node "
                    f"{self.caught['node']!r} of run {self.caught['run']}; started a replacement"
                )


def summarise(accounts: checks.Accounts, saboteur: Saboteur, wall: float) -> int:
    """Prints the books, and returns the exit status."""
    problems = list(accounts.problems)
    if saboteur.enabled and saboteur.caught is None:
        problems.append("no worker was caught inside a node, so nothing was killed")
    if saboteur.enabled and saboteur.caught is not None and not accounts.steals:
        problems.append("a worker was killed inside a node, but no run was taken over")
    lines = {
        "runs": f"{accounts.runs}, all done" if not accounts.problems else str(accounts.runs),
        "moments committed": accounts.moments,
        "steals": f"{accounts.steals} (runs taken over from a lost worker)",
        "stale leases refused": accounts.refused,
        "retries after a backoff": accounts.retries,
        "verdicts": accounts.verdicts,
        "node executions": f"{accounts.executions}, of which {accounts.repeated} beyond one per attempt",
        "lost or committed twice": "nothing" if not accounts.problems else "see below",
        "wall time": f"{wall:.1f} s",
    }
    console.print()
    for name, value in lines.items():
        console.print(f"{name:>24}  {value}")
    for problem in problems:
        console.print(f"PROBLEM: {problem}", markup=False)
    return 1 if problems else 0


def look_around(fleet: Fleet, run_id: str, *, keep: bool) -> None:
    """Says where to look next; with `keep`, waits there until Ctrl-C."""
    if not keep:
        console.print("to look around in a living fleet, run it again with --keep")
        return
    console.print("\neverything keeps running until Ctrl-C; in another shell, from this directory:")
    for name, value in fleet.environment.items():
        console.print(f"  export {name}={value}", soft_wrap=True)
    for command in (
        f"celery -A {APP} docket status",
        f"celery -A {APP} docket runs",
        f"celery -A {APP} docket events {run_id}",
        f"celery -A {APP} worker -Q {QUEUE}",
        f"celery -A {APP} flower        # pip install flower",
        f"psql {fleet.database_url} -c 'select * from docket.runs limit 5'",
    ):
        console.print(f"  {command}", soft_wrap=True)
    while fleet.fallen() is None:
        time.sleep(0.5)


def distributions() -> list[tuple[str, str]]:
    """Name and metadata directory of each distribution that this interpreter would import, sorted by name."""
    found: dict[str, tuple[str, str]] = {}
    for distribution in importlib.metadata.distributions():
        site = getattr(distribution, "_path", None)
        name = distribution.metadata["Name"]
        if name and site is not None and Path(site).is_dir():
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), (name, str(site)))
    return [found[key] for key in sorted(found)]


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def _interrupt(number: int, frame: FrameType | None) -> None:
    """An orderly end with every process stopped; being impatient does not cut it short."""
    for impatient in (signal.SIGINT, signal.SIGTERM):
        signal.signal(impatient, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
