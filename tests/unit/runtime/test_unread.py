"""Which unread values a superstep asks for: those its nodes take in, and those that reducers and guards go by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace
from support.leaving import emptied

from docket_celery import FINISH, START, Graph, Interrupt, Retry, Sleep
from docket_celery.compiler import compile
from docket_celery.compiler.nodes import local_resolver
from docket_celery.graph.elements import FieldInput
from docket_celery.run.document import JsonValue, Run
from docket_celery.run.moment import Appended, Moment
from docket_celery.runtime.executor import InlineExecutor
from docket_celery.runtime.loop import Advance, propose_advance, propose_init
from docket_celery.runtime.options import RuntimeOptions
from docket_celery.runtime.plan import NotDue
from docket_celery.testing import ManualClock

VALUES = {"text": "t", "first": "f", "total": 2, "table": {"a": 1}, "names": ["n"], "log": ["begun"]}


class Stepping:
    """A run of one node `n`, whose every value is unread before each step; `asked` is what was then read."""

    def __init__(self, node: Any, *, when: str | None = None, **options: Any) -> None:
        graph = (
            Graph("g")
            .field("text", str, default="t")
            .field("first", str, reducer="first_value", default="f")
            .field("total", int, reducer="sum", default=2)
            .field("table", dict[str, int], reducer="merge", default={"a": 1})
            .field("names", list[str], reducer="union", default=["n"])
            .field("log", list[str], reducer="append", default=["begun"])
            .node("n", node, **options)
            .node("after", lambda: None)
            .edge(START, "n")
            .edge("n", "after", when=when)
            .edge("after", FINISH)
        )
        self.program = compile(graph, local_resolver(graph), default_max_supersteps=None, max_value_bytes=10**6)
        self.clock = ManualClock()
        self.options = RuntimeOptions()
        self.run: Run = propose_init(self.program, "r", {}, now=self.clock.now(), options=self.options).run
        self.asked: list[set[str]] = []

    def step(self) -> Advance:
        whole, self.asked = self.run, []

        def read(names: frozenset[str]) -> Mapping[str, JsonValue]:
            self.asked.append(set(names))
            return {name: whole.fields[name] for name in names}

        made = self._advanced(emptied(whole), read=read)
        if isinstance(made, Moment):
            self.run = self._whole(whole, made)
        return made

    def _advanced(self, run: Run, **reading: Any) -> Advance:
        return propose_advance(
            self.program,
            run,
            executor=InlineExecutor(self.clock.monotonic),
            now=self.clock.now,
            fraction=lambda: 0.0,
            options=self.options,
            **reading,
        )

    def _whole(self, before: Run, moment: Moment) -> Run:
        """The moment's run, with what a store would have kept of the values it did not read."""
        kept = {name: before.fields[name] for name in moment.run.unread}
        for change in moment.changes:
            if isinstance(change, Appended) and change.name in kept:
                kept[change.name] = [*kept[change.name], *change.items]
        return moment.run.having_read(kept)


def test_a_step_that_touches_nothing_reads_nothing() -> None:
    steps = Stepping(lambda: None)
    assert isinstance(steps.step(), Moment)
    assert steps.asked == []
    assert steps.run.fields == VALUES


def test_what_a_node_takes_in_is_read_before_it_is_called() -> None:
    def node(text: str, total: int) -> dict[str, str]:
        return {"text": f"{text}{total}"}

    steps = Stepping(node)
    steps.step()
    assert steps.asked == [{"text", "total"}]
    assert steps.run.fields["text"] == "t2"


def test_an_optional_input_that_is_unread_has_a_value_all_the_same() -> None:
    seen = []
    steps = Stepping(lambda it=None: seen.append(it), inputs={"it": FieldInput(field="text", optional=True)})
    steps.step()
    assert (steps.asked, seen) == ([{"text"}], ["t"])


@pytest.mark.parametrize(
    ("write", "read", "after"),
    [
        ({"text": "new"}, [], "new"),
        ({"log": "item"}, [], ["begun", "item"]),
        ({"log": []}, [], ["begun"]),
        ({"first": "late"}, [{"first"}], "f"),
        ({"total": 3}, [{"total"}], 5),
        ({"table": {"b": 2}}, [{"table"}], {"a": 1, "b": 2}),
        ({"names": ["n", "m"]}, [{"names"}], ["n", "m"]),
    ],
    ids=["replaced", "appended", "appended-nothing", "first", "sum", "merge", "union"],
)
def test_a_write_reads_the_committed_value_only_where_they_are_reduced(write: Any, read: Any, after: Any) -> None:
    steps = Stepping(lambda: write)
    steps.step()
    assert steps.asked == read
    assert steps.run.fields == {**VALUES, next(iter(write)): after}


def test_a_guard_reads_what_it_judges() -> None:
    steps = Stepping(lambda: None, when="size(log) == 1 && text == 't'")
    steps.step()
    assert steps.asked == [{"log", "text"}]
    assert [task.node for task in steps.run.tasks] == ["after"]


def test_a_guard_on_what_was_just_replaced_reads_nothing() -> None:
    steps = Stepping(lambda: {"text": "new"}, when="text == 'new'")
    steps.step()
    assert steps.asked == []
    assert [task.node for task in steps.run.tasks] == ["after"]


def test_a_guard_on_a_log_that_was_just_appended_to_reads_it() -> None:
    steps = Stepping(lambda: {"log": "item"}, when="size(log) == 2")
    made = steps.step()
    assert steps.asked == [{"log"}]
    assert isinstance(made, Moment)
    assert made.changes == (Appended(name="log", items=("item",)),)
    assert [task.node for task in steps.run.tasks] == ["after"]


def test_writes_that_wait_for_the_barrier_read_nothing_until_then() -> None:
    steps = Stepping(lambda: Sleep(5, writes={"total": 1}))
    steps.step()
    assert steps.asked == []
    assert isinstance(steps.step(), NotDue)
    steps.clock.advance(5)
    steps.step()
    assert steps.asked == [{"total"}]
    assert steps.run.fields["total"] == 3


def test_an_answer_stands_for_the_unread_field_and_is_reduced_onto_it() -> None:
    seen = []

    def node(total: int) -> Any:
        seen.append(total)
        return Interrupt("total") if len(seen) == 1 else None

    steps = Stepping(node)
    steps.step()
    assert steps.asked == [{"total"}]
    (task,) = steps.run.tasks
    steps.run = replace(
        steps.run, tasks=(replace(task, state="ready", answers={"total": 40}),), interrupts=(), answered=("n@1.1",)
    )
    steps.step()
    assert (steps.asked, seen) == ([{"total"}], [2, 40])
    assert steps.run.fields["total"] == 42


def test_a_failed_attempt_reads_nothing_more() -> None:
    def node() -> None:
        raise OSError("no")

    steps = Stepping(node, when="text == 't'", retry=Retry(max_attempts=2, backoff=1.0))
    steps.step()
    assert steps.asked == []


def test_whoever_has_whole_runs_is_never_asked() -> None:
    steps = Stepping(lambda text: {"total": 1}, when="size(log) == 1")
    assert isinstance(steps._advanced(steps.run), Moment)
    with pytest.raises(AssertionError, match="left unread"):
        steps._advanced(emptied(steps.run))
