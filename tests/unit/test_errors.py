"""What every error of this package has in common: its text is bounded, and quotes whatever it is given."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import pytest

from docket_celery import START, Graph, errors
from docket_celery.config import Config
from docket_celery.errors import DocketError, PermanentFailure, shown
from docket_celery.storage import memory
from docket_celery.storage.contracts.values import SYSTEM, GraphRef
from docket_celery.testing import ManualClock, SequentialIds, run_inline

LONG = "x" * 1_000_000
PLAIN = [
    error
    for _, error in inspect.getmembers(errors, inspect.isclass)
    if issubclass(error, DocketError) and "__init__" not in vars(error)
]


@pytest.mark.parametrize("error", PLAIN, ids=[error.__name__ for error in PLAIN])
def test_the_text_of_an_error_is_bounded_and_says_what_was_left_out(error: type[DocketError]) -> None:
    assert str(error("short")) == "short"
    text = str(error(LONG))
    assert len(text) < 4_000
    assert text.endswith("... (1000000 characters)")
    assert str(pickle.loads(pickle.dumps(error(LONG)))) == text


def test_an_error_keeps_what_it_was_given() -> None:
    assert PermanentFailure(LONG).args == (LONG,)
    assert str(PermanentFailure()) == ""
    assert str(PermanentFailure(402, "declined")) == "(402, 'declined')"


def test_a_message_that_was_cut_once_is_not_cut_again_in_a_runs_failure() -> None:
    def node() -> None:
        raise PermanentFailure(LONG)

    failure = run_inline(Graph("g").node("a", node).edge(START, "a")).run.failure
    assert failure is not None
    assert failure.message == str(PermanentFailure(LONG))


class Exits:
    def __repr__(self) -> str:
        raise SystemExit(2)


@pytest.mark.parametrize("value", [LONG, LONG.encode(), [LONG] * 3, 10**5_000, Exits(), {"k": Exits()}], ids=type)
def test_any_value_is_shown_at_short_length(value: Any) -> None:
    assert len(shown(value)) < 200


STORES = memory.open_storage(clock=ManualClock(), ids=SequentialIds())
GRAPH = Graph("g").node("a", lambda: None).edge(START, "a")
REFUSED = {
    "run": lambda name: STORES.runs.fetch_run(SYSTEM, name),
    "graph": lambda name: STORES.graphs.fetch_latest(SYSTEM, name),
    "version": lambda name: STORES.graphs.fetch_graph(SYSTEM, GraphRef(graph_id=name, graph_hash=name)),
    "input": lambda name: run_inline(GRAPH, {name: 1}),
    "stub": lambda name: run_inline(GRAPH, stubs={name: None}),
    "schema": lambda name: GRAPH.field("f", name),
    "node's code": lambda name: GRAPH.node(LONG, lambda: None).node(LONG, lambda: None),
    "option": lambda name: Config.from_mapping({f"docket_{LONG}": 1}),
}


@pytest.mark.parametrize("name", [LONG, 10**5_000], ids=["a million characters", "five thousand digits"])
@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED.keys())
def test_a_name_that_is_refused_is_quoted_at_short_length(refused: Any, name: Any) -> None:
    with pytest.raises(DocketError) as refusal:
        refused(name)
    assert len(str(refusal.value)) < 4_000
