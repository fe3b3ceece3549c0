"""Two nodes write in one superstep: which of them ends last, and who dies in between, decides nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.journeys import driven, killed
from support.rig import Rig

from docket_celery import FINISH, START, Graph, RunStatus
from docket_celery.executors.nodes import NodeExecutor


def diamond(b: Callable[[], Any], c: Callable[[], Any]) -> Graph:
    return (
        Graph("diamond")
        .field("x", int)
        .field("log", list[str], reducer="append")
        .node("a", lambda: {"log": "a"})
        .node("b", b)
        .node("c", c)
        .node("d", lambda: {"log": "d"})
        .edge(START, "a")
        .edge("a", "b")
        .edge("a", "c")
        .edge(["b", "c"], "d")
        .edge("d", FINISH)
    )


def in_turn(first: Any, then: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Two nodes of one superstep, of which the second returns only after the first has."""
    returned = threading.Event()

    def leads() -> Any:
        returned.set()
        return first

    def follows() -> Any:
        assert returned.wait(10)
        return then

    return leads, follows


WRITES = [
    ({"x": 1, "log": "b"}, {"x": 2, "log": "c"}, 2),
    ({"x": 7, "log": "b"}, {"x": 7, "log": "c"}, 7),
    ({"log": "b"}, {"x": 2, "log": "c"}, 2),
    ({"x": 1, "log": "b"}, {"log": "c"}, 1),
]


@pytest.mark.usefixtures("signals_given_back")
@pytest.mark.parametrize(("b", "c", "x"), WRITES)
@pytest.mark.parametrize("last", ["b", "c"])
def test_the_greatest_node_id_wins_whichever_of_two_threads_ends_last(b: Any, c: Any, x: int, last: str) -> None:
    executor = NodeExecutor(time.monotonic)
    for _ in range(50):
        graph = diamond(*in_turn(b, c)) if last == "c" else diamond(*reversed(in_turn(c, b)))
        rig = Rig(executor=lambda clock: executor)
        rig.start(graph)
        rig.drain()
        run = rig.run()
        assert run.status is RunStatus.DONE
        assert (run.fields["x"], run.fields["log"]) == (x, ["a", "b", "c", "d"])


@pytest.mark.parametrize(("b", "c", "x"), WRITES)
def test_the_same_wins_with_a_crash_and_a_second_execution_between(b: Any, c: Any, x: int) -> None:
    graph = diamond(lambda: b, lambda: c)
    for number in range(1, 6):
        for applied in (False, True):
            found, _ = driven(
                graph,
                {},
                {},
                kill=lambda commit: killed(applied=applied) if commit == number else None,  # noqa: B023
            )
            assert found.status is RunStatus.DONE
            assert (found.fields["x"], found.fields["log"]) == (x, ["a", "b", "c", "d"])
