"""Starting many runs at once: what is stored, reported and nudged, and which input is named when one is refused."""

from __future__ import annotations

from typing import Any

import pytest
from support.rig import Rig

from docket_celery import START, Graph
from docket_celery.errors import InvalidInput, KeyConflict, NotFound, ValueRefused
from docket_celery.telemetry.hook import MomentCommitted


def node() -> None:
    """A node that workers could find."""


QUICK = Graph("quick").input("n", int, default=0).field("note", Any).node("a", node).edge(START, "a")


def test_the_runs_come_back_in_order_each_reported_and_nudged_for_once() -> None:
    rig = Rig()
    runs = rig.verbs.start_runs(rig.publish(QUICK), ({"n": n} for n in range(1_000)))
    assert [run.fields["n"] for run in runs] == list(range(1_000))
    assert [fact.moment.run for fact in rig.reported(MomentCommitted)] == list(runs)
    assert rig.nudges.after == [0.0]
    assert rig.verbs.fetch_run(runs[7].id) == runs[7]
    assert (rig.runs.count("insert_runs"), rig.runs.count("insert_run")) == (1, 0)


def test_no_inputs_start_nothing_and_nudge_nobody() -> None:
    rig = Rig()
    assert rig.verbs.start_runs(rig.publish(QUICK), []) == ()
    assert rig.nudges.after == []


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"n": "three"}, InvalidInput, r"inputs\[2\]: .*'n'"),
        ({"m": 3}, InvalidInput, r"inputs\[2\]: .*'m'"),
        ([3], InvalidInput, r"inputs\[2\]: "),
        ({"n": {3}}, (InvalidInput, ValueRefused), r"inputs\[2\]: "),
    ],
)
def test_the_first_input_that_does_not_fit_is_named_by_its_index_and_nothing_is_stored(
    wrong: Any, error: Any, message: str
) -> None:
    rig = Rig()
    with pytest.raises(error, match=message):
        rig.verbs.start_runs(rig.publish(QUICK), [{"n": 1}, None, wrong, {"n": "four"}])
    assert (rig.verbs.list_runs().runs, rig.facts, rig.nudges.after) == ((), [], [])


@pytest.mark.parametrize("keys", [["a"], ["a", "b", "c"], "ab"])
def test_keys_go_with_the_inputs_one_by_one(keys: Any) -> None:
    rig = Rig()
    with pytest.raises(InvalidInput, match="keys must name each of the 2 inputs"):
        rig.verbs.start_runs(rig.publish(QUICK), [{}, {}], keys=keys)


def test_a_key_that_cannot_be_one_is_named_by_its_index() -> None:
    rig = Rig()
    with pytest.raises(InvalidInput, match=r"keys\[1\]"):
        rig.verbs.start_runs(rig.publish(QUICK), [{}, {}], keys=["a", ""])
    assert rig.verbs.list_runs().runs == ()


def test_starting_the_same_keys_again_returns_the_same_runs_and_reports_only_the_new_one() -> None:
    rig = Rig()
    ref = rig.publish(QUICK)
    first = rig.verbs.start_runs(ref, [{"n": 1}, {"n": 2}], keys=["a", "b"])
    again = rig.verbs.start_runs(ref, [{"n": 2}, {"n": 3}, {"n": 1}], keys=["b", None, "a"])
    assert (again[0], again[2]) == (first[1], first[0])
    assert [fact.moment.run for fact in rig.reported(MomentCommitted)] == [*first, again[1]]
    assert rig.nudges.after == [0.0, 0.0]
    rig.verbs.start_runs(ref, [{"n": 1}], keys=["a"])
    assert rig.nudges.after == [0.0, 0.0]


def test_the_order_of_an_objects_keys_makes_no_other_input() -> None:
    graph = Graph("nested").input("order", dict[str, Any]).node("a", lambda: None).edge(START, "a")
    rig = Rig()
    ref = rig.publish(graph)
    first = rig.verbs.start_run(ref, {"order": {"id": 1, "lines": [{"a": 1, "b": 2}]}}, key="k")
    again = rig.verbs.start_run(ref, {"order": {"lines": [{"b": 2, "a": 1}], "id": 1}}, key="k")
    assert again == first
    assert list(again.fields["order"]) == ["id", "lines"]
    for other in ({"id": 1, "lines": [{"a": 1, "b": 2.0}]}, {"id": 1, "lines": [{"a": 1}, {"b": 2}]}):
        with pytest.raises(KeyConflict):
            rig.verbs.start_run(ref, {"order": other}, key="k")


def test_another_input_under_a_held_key_keeps_all_of_them_out() -> None:
    rig = Rig()
    ref = rig.publish(QUICK)
    held = rig.verbs.start_run(ref, {"n": 1}, key="a")
    with pytest.raises(KeyConflict) as caught:
        rig.verbs.start_runs(ref, [{"n": 5}, {"n": 2}], keys=[None, "a"])
    assert (caught.value.key, caught.value.run_id) == ("a", held.id)
    assert len(rig.verbs.list_runs().runs) == 1


def test_a_graph_that_was_never_published_is_not_found_even_for_no_inputs() -> None:
    with pytest.raises(NotFound):
        Rig().verbs.start_runs("grating", [])


def test_an_explicit_wake_nudges() -> None:
    rig = Rig()
    rig.verbs.wake()
    assert rig.nudges.after == [0.0]
