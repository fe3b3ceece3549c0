"""Large values: a redemption leaves them where they are, and a vehicle reads those that its run needs."""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from support.builders import TTL, a_commit, a_scan
from support.plans import explained
from support.rig import Rig
from support.scene import RETAIN, Scene

from docket_celery import FINISH, START, Graph, NodeContext
from docket_celery.run.document import Run, RunStatus
from docket_celery.run.moment import Appended
from docket_celery.storage.contracts.claims import Redeemed
from docket_celery.storage.contracts.taking import TakeRequest
from docket_celery.storage.contracts.values import SYSTEM, Release
from docket_celery.vehicle.outcomes import Abandoned, Discarded, Parked

LARGEST = 16_384
"""Bytes of the largest value that comes with a redemption."""
PAGE = 8_192
MEGABYTE = "".join(random.Random(1).choices(string.ascii_letters, k=2**20))
"""Text that does not compress."""


def _redeemed(place: Scene) -> Run:
    return place.runs.redeem_claim(place.lease(), token="mine").run


def _taken(place: Scene) -> Run:
    claim = place.runs.take_due(a_scan(limit=1), token="mine").claim
    assert isinstance(claim, Redeemed)
    return claim.run


def _taken_along(place: Scene) -> Run:
    """Brought along by the commit that ends a run which was due before it."""
    place.start("run-0", schedule=Release(kind="at", at=place.now - TTL))
    proposal = a_commit(place.run("run-0"), place.hold(limit=1), at=place.now, status=RunStatus.DONE)
    request = TakeRequest(policy=a_scan(limit=1, delivery="direct"), token="mine")
    done = place.runs.commit(SYSTEM, proposal, take=request)
    assert done.taken is not None
    assert isinstance(done.taken.claim, Redeemed)
    return done.taken.claim.run


BEGUN = [_redeemed, _taken, _taken_along]


@pytest.mark.parametrize("begun", BEGUN)
def test_a_run_is_handed_out_with_the_names_of_its_large_values(place: Scene, begun: Callable[[Scene], Run]) -> None:
    fields = {
        "just": MEGABYTE[: LARGEST - 2],
        "beyond": MEGABYTE[: LARGEST - 1],
        "compressed": "a" * LARGEST,
        "short": "a",
        "wide": "\u00e9" * (LARGEST // 2 + 1),
        "none": None,
    }
    place.start(fields=fields)
    run = begun(place)
    unread = {"beyond", "compressed", "wide"}
    assert run.unread == unread
    assert run.fields == {name: value for name, value in fields.items() if name not in unread}
    left = place.runs.read_values("run-1", "mine", run.unread, checkpoint_seq=1)
    assert run.having_read(left) == place.run()
    assert place.run().fields == fields


@pytest.mark.parametrize("begun", BEGUN)
def test_a_long_log_is_one_name_and_a_short_one_is_there(place: Scene, begun: Callable[[Scene], Run]) -> None:
    place.start(fields={"long": [], "short": ["begun"]})
    token = place.hold()
    for number in range(20):
        items = {"long": (MEGABYTE[number * 1_000 :][:1_000],), "short": (number,)}
        fields = {name: [*place.run().fields[name], *added] for name, added in items.items()}
        changes = tuple(Appended(name=name, items=added) for name, added in items.items())
        place.commit("run-1", token, fields=fields, changes=changes, schedule=RETAIN)
    place.runs.release_claim("run-1", token)
    run = begun(place)
    assert run.unread == {"long"}
    assert run.fields == {"short": ["begun", *range(20)]}
    left = place.runs.read_values("run-1", "mine", run.unread, checkpoint_seq=21)
    assert run.having_read(left) == place.run()


def test_whoever_looks_at_a_run_sees_all_its_values(place: Scene) -> None:
    place.start(fields={"big": MEGABYTE})
    assert place.run().fields == place.info().run.fields == {"big": MEGABYTE}
    assert place.mutate("run-1").fields == {"big": MEGABYTE}


@pytest.mark.parametrize("mode", ["force_generic_plan", "force_custom_plan"])
@pytest.mark.parametrize("statement", ["redeem_claim", "take_ready", "take_alone"])
def test_a_large_value_is_not_fetched_from_where_it_lies(
    place: Scene, beside: psycopg.Connection, statement: str, mode: str
) -> None:
    place.start(fields={"big": MEGABYTE})
    lease = place.lease() if statement == "redeem_claim" else None
    parameters = {
        "now": place.now, "token": "mine", "ttl": TTL, "refresh_after": TTL / 3, "demanded": False, "slots": None,
        "max_attempts": 3, "preference": None, "ready_from": None, "claimed_from": None, "id": "run-1",
        "offered": lease and lease.claim_token, "checkpoint_seq": 1,
    }  # fmt: skip
    for _ in range(2):
        # The first time the session reads the catalogue as well.
        plan = explained(beside, statement, mode, parameters)
    assert plan["Actual Rows"] == 1
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < len(MEGABYTE) / PAGE / 4


# -- vehicles ------------------------------------------------------------------------------------------------------


def beside_it(*nodes: Callable[..., Any], reducer: str = "last_value", when: str | None = None, big: Any) -> Graph:
    """These nodes in a line, named n0, n1, ..., beside the large field; `when` guards the edges between them."""
    graph = Graph("g").field("big", Any, default=big, reducer=reducer).field("log", list[str], reducer="append")
    names = [f"n{number}" for number in range(len(nodes))]
    for name, node in zip(names, nodes, strict=True):
        graph = graph.node(name, node)
    for source, target in zip([START, *names], [*names, FINISH], strict=True):
        graph = graph.edge(source, target, when=when if {source, target}.isdisjoint({START, FINISH}) else None)
    return graph


def logs() -> dict[str, str]:
    return {"log": "logged"}


def adds(ctx: NodeContext) -> dict[str, str]:
    return {"big": ctx.node}


def measures(big: Any) -> dict[str, str]:
    return {"log": str(len(big))}


@pytest.fixture(params=[100, 1], ids=["long drain", "reloaded at each step"])
def rig(request: pytest.FixtureRequest, place: Scene) -> Rig:
    return Rig(storage=place.storage, clock=place.clock, drain_max_moments=request.param)


def driven(rig: Rig, graph: Graph) -> Run:
    rig.start(graph)
    while rig.run().status is RunStatus.RUNNING:
        assert isinstance(rig.drain(), Parked)
    return rig.run()


def read_by(rig: Rig) -> list[set[str]]:
    return [set(names) for (_, _, names), _ in rig.runs.of("read_values")]


def test_an_untouched_megabyte_is_never_read(rig: Rig) -> None:
    run = driven(rig, beside_it(logs, logs, logs, big=MEGABYTE))
    assert (run.status, run.fields) == (RunStatus.DONE, {"big": MEGABYTE, "log": ["logged"] * 3})
    assert read_by(rig) == []


def test_a_large_input_is_read_once_for_each_claim_that_needs_it(rig: Rig) -> None:
    run = driven(rig, beside_it(logs, measures, measures, big=MEGABYTE))
    assert run.fields == {"big": MEGABYTE, "log": ["logged", str(2**20), str(2**20)]}
    assert read_by(rig) == [{"big"}] * (1 if rig.engine.config.drain_max_moments == 100 else 2)


def test_a_guard_judges_a_large_value(rig: Rig) -> None:
    run = driven(rig, beside_it(logs, logs, big=MEGABYTE, when="size(big) == 1048576"))
    assert (run.status, run.fields["log"]) == (RunStatus.DONE, ["logged"] * 2)
    assert read_by(rig) == [{"big"}]


def test_what_is_written_is_reduced_onto_a_large_value(rig: Rig) -> None:
    big = {"old": MEGABYTE, "n": 0}
    run = driven(rig, beside_it(logs, lambda: {"big": {"n": 1}}, lambda: {"big": {"m": 2}}, reducer="merge", big=big))
    assert run.fields == {"big": {"old": MEGABYTE, "n": 1, "m": 2}, "log": ["logged"]}


def test_a_large_value_is_replaced_unread(rig: Rig) -> None:
    run = driven(rig, beside_it(logs, lambda: {"big": "new"}, measures, big=MEGABYTE))
    assert run.fields == {"big": "new", "log": ["logged", "3"]}
    assert read_by(rig) == []


def test_a_large_log_is_appended_to_unread(rig: Rig) -> None:
    run = driven(rig, beside_it(adds, adds, adds, reducer="append", big=[MEGABYTE]))
    assert run.fields == {"big": [MEGABYTE, "n0", "n1", "n2"], "log": []}
    assert read_by(rig) == []


def test_a_log_that_was_appended_to_unread_is_read_whole(rig: Rig) -> None:
    run = driven(rig, beside_it(adds, adds, measures, reducer="append", big=[MEGABYTE]))
    assert run.fields == {"big": [MEGABYTE, "n0", "n1"], "log": ["3"]}


CORRUPT = {
    "value": "UPDATE run_fields SET value = repeat('9', 20000)::json WHERE name = 'big'",
    "items of what is no list": "INSERT INTO run_chunks VALUES ('run-1', 'big', 1, '[1]')",
}


@pytest.mark.parametrize("change", CORRUPT.values(), ids=CORRUPT.keys())
def test_a_large_value_that_cannot_be_read_disturbs_only_the_step_that_needs_it(
    rig: Rig, beside: psycopg.Connection, change: str
) -> None:
    rig.start(beside_it(logs, measures, big=MEGABYTE))
    beside.execute(change.encode())
    outcome = rig.drain()
    if rig.engine.config.drain_max_moments == 1:
        assert isinstance(outcome, Parked)
        outcome = rig.drain()
    assert isinstance(outcome, Abandoned)
    assert outcome.disposition == "rescheduled"
    assert outcome.reason.startswith("run 'run-1': ")
    beside.execute("DELETE FROM run_chunks WHERE name = 'big'")
    beside.execute("""UPDATE run_fields SET value = '"mended"' WHERE name = 'big'""")
    rig.advance(rig.engine.config.abandon_backoff * 2)
    while rig.run().status is RunStatus.RUNNING:
        rig.drain()
    assert rig.run().fields == {"big": "mended", "log": ["logged", "6"]}


def test_a_fence_that_moved_since_the_redemption_is_a_lost_fence(rig: Rig) -> None:
    rig.start(beside_it(measures, big=MEGABYTE))
    rig.runs.plan("read_values", lambda: rig.verbs.cancel_run("run-1"))
    assert isinstance(rig.drain(), Discarded)
    assert (rig.run().status, rig.run().fields) == (RunStatus.CANCELLED, {"big": MEGABYTE, "log": []})
