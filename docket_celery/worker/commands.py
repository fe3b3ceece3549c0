"""`celery -A proj docket ...`: thin shells over the verbs. Cheap to import: Celery loads this on every command.

Exit status 0 on success, 1 for an error that the message explains, 2 for wrong usage.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from docket_celery.client import Client
    from docket_celery.storage.contracts.retention import PruneCount
    from docket_celery.worker.setup import Docket


def verb(command: Callable[..., Any]) -> Callable[..., Any]:
    """Hands the app's Docket to a command, and turns this package's errors into a message and exit status 1."""

    @click.pass_context
    @wraps(command)
    def run(context: click.Context, *args: Any, **kwargs: Any) -> Any:
        from docket_celery.errors import CorruptRecord, DocketError

        try:
            return command(_docket(context), *args, **kwargs)
        except CorruptRecord as error:
            hint = "`docket cancel --force` ends a run without reading it"
            raise click.ClickException(f"{error}\n{hint}") from error
        except DocketError as error:
            raise click.ClickException(str(error)) from error

    return run


def _docket(context: click.Context) -> Docket:
    from docket_celery.worker.setup import Docket

    app = context.obj.app
    docket = Docket.of(app)
    if docket is None:
        raise click.UsageError(f"app {app.main!r} has no Docket: give -A an app that calls Docket(app)")
    return docket


def _client(docket: Docket, tenant: str | None) -> Client:
    """The verbs under the tenant's scope. Wrong usage where the app requires a tenant and none was given."""
    if tenant is not None:
        return docket.for_tenant(tenant)
    if docket.config.tenant_mode == "required":
        raise click.UsageError("docket_tenant_mode is 'required': give --tenant")
    return docket


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")
for_tenant = click.option("--tenant", default=None, help="Act under this tenant's scope.")


@click.group()
def docket() -> None:
    """Durable workflows: migrate the database, look at runs, and get out of trouble."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A name may have characters that the terminal lacks; whoever looks for trouble wants the rest all the same.
        sys.stdout.reconfigure(errors="backslashreplace")


@docket.command()
@click.option("--sql", is_flag=True, help="Print the SQL that would run, and run nothing.")
@click.option("--check", is_flag=True, help="Only check that the schema fits this version.")
@verb
def migrate(docket: Docket, sql: bool, check: bool) -> None:
    """Create or upgrade the schema. Safe to run from several machines at once."""
    from docket_celery.storage.postgres import migrate as migration

    schema = docket.config.schema
    if sql:
        click.echo(migration.sql(schema))
        return
    if check:
        migration.check(docket.database_url, schema)
        click.echo(f"schema {schema!r} fits this version")
        return
    migration.upgrade(docket.database_url, schema)
    click.echo(f"schema {schema!r} is up to date")


@docket.command()
@as_json
@verb
def status(docket: Docket, as_json: bool) -> None:
    """Show what is due, claimed and halted, and which workers take leases."""
    from docket_celery.worker import tables

    backlog = docket.storage.fleet.backlog(orphan_ttl=docket.engine.orphan_ttl)
    _show(as_json, tables.backlog_record(backlog), lambda: tables.backlog_table(backlog))


def seconds(context: click.Context, parameter: click.Parameter, value: float) -> timedelta:
    """An option's value as a time; wrong usage where it is none, such as `nan`."""
    from docket_celery.graph.elements import LONGEST_DELAY

    if not 0 <= value <= LONGEST_DELAY:
        raise click.BadParameter(f"must be seconds from 0 to {LONGEST_DELAY:g}, got {value:g}")
    return timedelta(seconds=value)


@docket.command()
@click.option("--due-limit", default=30.0, callback=seconds, show_default=True, help="Seconds that a run may be due.")
@click.option(
    "--scan-limit", default=30.0, callback=seconds, show_default=True, help="Seconds since the last scan, if one is."
)
@as_json
@verb
def health(docket: Docket, due_limit: timedelta, scan_limit: timedelta, as_json: bool) -> None:
    """Say whether work goes on: exit status 0, or 1 when runs are due and nobody looks. Needs no broker."""
    from docket_celery.worker.health import judge

    backlog = docket.storage.fleet.backlog(orphan_ttl=docket.engine.orphan_ttl)
    verdict = judge(backlog, due_limit=due_limit, scan_limit=scan_limit)
    text = f"{'healthy' if verdict.healthy else 'unhealthy'}: {verdict.reason}"
    click.echo(json.dumps({"healthy": verdict.healthy, "reason": verdict.reason}) if as_json else text)
    raise SystemExit(0 if verdict.healthy else 1)


@docket.command()
@as_json
@verb
def doctor(docket: Docket, as_json: bool) -> None:
    """Look for what is wrong and say what to do: exit status 0, or 1 for problems."""
    from docket_celery.worker import tables
    from docket_celery.worker.doctor import diagnose
    from docket_celery.worker.examination import examine

    findings = diagnose(examine(docket))
    _show(as_json, tables.finding_records(findings), lambda: tables.finding_table(findings))
    raise SystemExit(1 if any(finding.verdict == "problem" for finding in findings) else 0)


@docket.group(invoke_without_command=True)
@click.option("--after", default=None, help="Go on after this graph id.")
@click.option("--limit", default=50, show_default=True)
@for_tenant
@as_json
@verb
def graphs(docket: Docket, after: str | None, limit: int, tenant: str | None, as_json: bool) -> None:
    """List the latest version of each graph; or look at one, published or in a file."""
    from docket_celery.worker import tables

    if click.get_current_context().invoked_subcommand is not None:
        return
    found = _client(docket, tenant).list_graphs(limit=limit, after=after)
    _show(as_json, [tables.graph_record(version) for version in found], lambda: tables.graph_table(found))


@graphs.command(name="show")
@click.argument("graph_id")
@click.option("--hash", "graph_hash", default=None, help="This version, instead of the latest.")
@click.option("--mermaid", "form", flag_value="mermaid", help="Print Mermaid text.")
@click.option("--dot", "form", flag_value="dot", help="Print Graphviz text.")
@click.option("--svg", "form", flag_value="svg", help="Print SVG; needs Graphviz.")
@for_tenant
@as_json
@verb
def show_graph(
    docket: Docket, graph_id: str, graph_hash: str | None, form: str | None, tenant: str | None, as_json: bool
) -> None:
    """Show a published graph: its edges with guards and barriers, its nodes and its fields."""
    from docket_celery.storage.contracts.values import GraphRef
    from docket_celery.worker import graph_tables

    client = _client(docket, tenant)
    given = None if graph_hash is None else GraphRef(graph_id=graph_id, graph_hash=graph_hash)
    ref = given or client.latest_graph(graph_id)
    graph = client.fetch_graph(ref)
    if form is not None:
        click.echo({"mermaid": graph.to_mermaid, "dot": graph.to_dot, "svg": graph.to_svg}[form]())
        return
    _show(as_json, graph.to_dict(), lambda: graph_tables.graph_tables(graph, ref.graph_hash))


@graphs.command(name="verify")
@click.argument("file", type=click.File(encoding="utf-8"))
@as_json
@verb
def verify_graph(docket: Docket, file: Any, as_json: bool) -> None:
    """Check the graph document in FILE (JSON; - reads standard input) and print everything that is wrong with it.

    Node names must be known to this app. Exit status 1 when the graph could not be published.
    """
    from docket_celery.errors import GraphFormatError
    from docket_celery.graph.diagnostics import Severity, malformed
    from docket_celery.graph.document import Graph
    from docket_celery.worker import graph_tables

    try:
        document = json.load(file)
    except (ValueError, RecursionError) as error:
        raise click.ClickException(f"{file.name} is no JSON: {error}") from error
    try:
        graph = Graph.from_dict(document)
        found = docket.verify_graph(graph)
    except GraphFormatError as error:
        graph, found = None, (malformed(error),)
    record = graph_tables.findings_record(graph, found)
    _show(as_json, record, lambda: graph_tables.findings_text(file.name, found))
    if any(diagnostic.severity is Severity.ERROR for diagnostic in found):
        raise SystemExit(1)


@docket.command()
@click.option(
    "--status",
    type=click.Choice(["running", "waiting", "done", "failed", "cancelled"]),
    multiple=True,
    help="Only runs of this status; may be given several times.",
)
@click.option("--poisoned", is_flag=True, help="Only runs that their claim limits halted.")
@click.option("--graph", "graph_id", default=None, help="Only runs of this graph.")
@click.option("--limit", default=50, show_default=True)
@click.option("--before", default=None, help="Cursor of the previous page.")
@for_tenant
@as_json
@verb
def runs(
    docket: Docket,
    status: tuple[str, ...],
    poisoned: bool,
    graph_id: str | None,
    limit: int,
    before: str | None,
    tenant: str | None,
    as_json: bool,
) -> None:
    """List runs, newest first."""
    from docket_celery.worker import tables

    page = _client(docket, tenant).list_runs(
        status=status or None, graph_id=graph_id, poisoned=poisoned, limit=limit, before=before
    )
    _show(as_json, tables.page_record(page), lambda: tables.run_table(page))


@docket.command()
@click.argument("run_id")
@for_tenant
@as_json
@verb
def show(docket: Docket, run_id: str, tenant: str | None, as_json: bool) -> None:
    """Show one run: where it stands, what it waits for, its fields and its claim."""
    from docket_celery.worker import tables

    info = _client(docket, tenant).inspect_run(run_id)
    _show(as_json, tables.info_record(info), lambda: tables.info_table(info))


@docket.command()
@click.argument("run_id")
@click.option("--after", "after_seq", default=0, show_default=True, help="Only events after this sequence.")
@click.option("--limit", default=250, show_default=True)
@for_tenant
@as_json
@verb
def events(docket: Docket, run_id: str, after_seq: int, limit: int, tenant: str | None, as_json: bool) -> None:
    """Show what happened to a run."""
    from docket_celery.worker import tables

    page = _client(docket, tenant).list_events(run_id, after_seq=after_seq, limit=limit)
    _show(as_json, [tables.event_record(event) for event in page.events], lambda: tables.event_table(page))


@docket.command()
@click.argument("run_id")
@click.argument("interrupt_id")
@click.argument("answer")
@for_tenant
@verb
def resolve(docket: Docket, run_id: str, interrupt_id: str, answer: str, tenant: str | None) -> None:
    """Answer an open interrupt. ANSWER is JSON: true, 12, '"text"', '{"accept": true}'."""
    from docket_celery.errors import shown

    try:
        value = json.loads(answer)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"ANSWER must be JSON, got {shown(answer)}: {error}") from error
    run = _client(docket, tenant).resolve_interrupt(run_id, interrupt_id, value)
    click.echo(f"run {run.id} is {run.status.value}")


@docket.command()
@click.argument("run_id")
@click.option("--reason", default="", help="Kept in the run's events.")
@click.option("--force", is_flag=True, help="Also end a run that cannot be read.")
@for_tenant
@verb
def cancel(docket: Docket, run_id: str, reason: str, force: bool, tenant: str | None) -> None:
    """Cancel a run."""
    run = _client(docket, tenant).cancel_run(run_id, reason=reason, force=force)
    click.echo(f"run {run.id} is {run.status.value}")


@docket.command()
@click.argument("run_id")
@for_tenant
@verb
def retry(docket: Docket, run_id: str, tenant: str | None) -> None:
    """Give a poisoned run fresh counters and wake it."""
    run = _client(docket, tenant).retry_poisoned_run(run_id)
    click.echo(f"run {run.id} is {run.status.value}")


@docket.command()
@click.option("--limit", type=click.IntRange(min=1), default=None, help="Drain at most this many runs.")
@verb
def drain(docket: Docket, limit: int | None) -> None:
    """Claim due runs and drive them in this process, without broker or workers."""
    click.echo(f"drained {docket.drain(limit=limit)} runs")


@docket.command()
@click.option("--dry-run", is_flag=True, help="Only count what would go.")
@click.option("--graphs", is_flag=True, help="Also remove old graph versions that no run refers to.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@for_tenant
@as_json
@verb
def prune(docket: Docket, dry_run: bool, graphs: bool, yes: bool, tenant: str | None, as_json: bool) -> None:
    """Remove ended runs and events that are past their retention."""
    from docket_celery.worker import tables

    client = docket if tenant is None else docket.for_tenant(tenant)  # Without one it removes those of all tenants.
    if docket.config.run_retention is None and docket.config.event_retention is None:
        click.echo("neither docket_run_retention nor docket_event_retention is set: everything is kept", err=True)
    if dry_run or not yes:
        expected = client.prune(dry_run=True, graphs=graphs)
        if dry_run:
            _show(as_json, tables.prune_record(expected), lambda: tables.prune_table("would go", expected))
            return
        click.confirm(f"Remove {tables.pruned(expected)} for good?", abort=True, err=True)

    def tell(total: PruneCount) -> bool:
        click.echo(f"removed {tables.pruned(total)} so far", err=True)
        return True

    total = client.prune(graphs=graphs, go_on=tell)
    if total.busy:
        click.echo("another pruner is at work; the rest is left to it", err=True)
    _show(as_json, tables.prune_record(total), lambda: tables.prune_table("removed", total))


def _show(as_json: bool, record: Any, table: Callable[[], Any]) -> None:
    if as_json:
        click.echo(json.dumps(record, indent=2, default=str))
        return
    from rich.console import Console

    Console().print(table())
