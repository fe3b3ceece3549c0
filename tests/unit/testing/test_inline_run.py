"""Graphs without anything around them: moment by moment, with stubs, and with answers given or held back."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any
from unittest.mock import AsyncMock, Mock, call, create_autospec

import pytest

from docket_celery import FINISH, START, Graph, Interrupt, NodeContext, Retry, RunStatus, Sleep
from docket_celery.compiler import graph_hash
from docket_celery.errors import InactiveRun, InvalidInput, NotFound
from docket_celery.graph.elements import ConstantInput
from docket_celery.run.moment import CheckpointType
from docket_celery.testing import UNANSWERED, InlineRun, ManualClock, run_inline


def price(order_id: str) -> dict[str, Any]:
    raise AssertionError("not in a test")


def approve(total: float, approved: bool | None = None) -> Any:
    return Interrupt("approved", payload={"total": total}) if approved is None else None


order = (
    Graph("order")
    .input("order_id", str)
    .field("total", float)
    .field("approved", bool)
    .field("receipt", str)
    .node("price", price, retry=Retry(max_attempts=2, backoff=5.0))
    .node("approve", approve)
    .node("charge", "shop.charge", inputs={"amount": "total", "currency": ConstantInput(value="EUR")}, writes="receipt")
    .edge(START, "price")
    .edge("price", "approve")
    .edge("approve", "charge")
    .edge("charge", FINISH)
)
STUBS: dict[str, Any] = {"price": {"total": 9.5}, "charge": lambda amount, currency: f"{amount} {currency}"}


def test_stubs_stand_in_by_value_and_by_function_and_take_the_nodes_own_parameters() -> None:
    result = run_inline(order, {"order_id": "o-1"}, resolve={"approved": True}, stubs=STUBS)
    assert result.status is RunStatus.DONE
    assert result.output["receipt"] == "9.5 EUR"
    assert result.run.graph_hash == graph_hash(order)


def test_a_stub_declares_only_what_it_needs_and_may_take_fields_and_the_context() -> None:
    def charge(order_id: str, currency: str, ctx: NodeContext) -> str:
        return f"{ctx.node} {order_id} {currency}"

    result = run_inline(order, {"order_id": "o-1"}, resolve={"approved": True}, stubs={**STUBS, "charge": charge})
    assert result.fields["receipt"] == "charge o-1 EUR"

    everything = run_inline(
        order, {"order_id": "o-1"}, resolve={"approved": True}, stubs={**STUBS, "charge": lambda **given: str(given)}
    )
    assert everything.fields["receipt"] == "{'amount': 9.5, 'currency': 'EUR'}"


def test_a_stub_that_is_an_error_is_raised_and_retried_by_the_nodes_own_policy() -> None:
    result = run_inline(order, {"order_id": "o-1"}, stubs={**STUBS, "price": OSError("down")})
    assert result.run.failure is not None
    assert (result.run.failure.node, result.run.failure.message) == ("price", "down")
    assert [event.data["attempt"] for event in result.events if event.type.value == "node_failed"] == [1, 2]


class Prices:
    def lookup(self, order_id: str) -> dict[str, Any]:
        return {"total": float(len(order_id))}

    async def __call__(self, order_id: str) -> dict[str, Any]:
        return self.lookup(order_id)


def cheapest(order_id: str, total: float) -> dict[str, Any]:
    return {"total": total + len(order_id)}


CALLABLE = {
    "a mock": lambda: Mock(return_value={"total": 3.0}),
    "a mock that waits": lambda: AsyncMock(return_value={"total": 3.0}),
    "a mock of a function": lambda: create_autospec(lambda order_id: None, return_value={"total": 3.0}),
    "a partial": lambda: partial(cheapest, total=0.0),
    "a method": lambda: Prices().lookup,
    "an object": Prices,
}


@pytest.mark.parametrize("make", CALLABLE.values(), ids=CALLABLE.keys())
def test_whatever_can_be_called_is_a_stub(make: Any) -> None:
    result = run_inline(order, {"order_id": "o-1"}, stubs={**STUBS, "price": make()})
    assert result.history[1].fields["total"] == 3.0


def test_a_mock_is_given_the_nodes_parameters_and_raises_what_it_is_told_to() -> None:
    price = Mock(side_effect=[OSError("down"), {"total": 3.0}])
    result = run_inline(order, {"order_id": "o-1"}, stubs={**STUBS, "price": price})
    assert price.call_args_list == [call(order_id="o-1")] * 2
    assert result.fields["total"] == 3.0


def test_a_stub_that_is_a_class_of_errors_is_raised() -> None:
    result = run_inline(order, {"order_id": "o-1"}, stubs={**STUBS, "price": ConnectionError})
    assert result.run.failure is not None
    assert result.run.failure.error_type == "builtins.ConnectionError"


def test_a_stub_for_no_node_is_refused_and_the_nodes_are_named() -> None:
    with pytest.raises(InvalidInput, match=r"no node 'prize'.*'price'"):
        run_inline(order, {"order_id": "o-1"}, stubs={"prize": None})


def test_a_run_steps_by_one_commit_until_nothing_moves() -> None:
    run = InlineRun(order, {"order_id": "o-1"}, stubs=STUBS)
    assert (run.run.step, [task.node for task in run.run.tasks]) == (1, ["price"])
    moment = run.step()
    assert moment is not None
    assert moment.checkpoint_type is CheckpointType.STEP_COMMITTED
    assert run.run.fields["total"] == 9.5
    run.step()
    assert run.step() is None
    assert run.run.status is RunStatus.WAITING
    (question,) = run.run.interrupts
    with pytest.raises(NotFound, match="nobody"):
        run.resolve("nobody", True)
    assert run.resolve(question.id, True) is not None
    assert run.resolve(question.id, False) is None
    result = run.finish()
    assert result.status is RunStatus.DONE
    assert result.history[-1] == result.run == run.run
    assert [state.checkpoint_seq for state in result.history] == list(range(1, len(result.history) + 1))
    assert [event.seq for event in result.events] == list(range(1, len(result.events) + 1))
    with pytest.raises(InactiveRun):
        run.resolve("other", True)


def test_a_moment_that_was_only_proposed_has_not_happened() -> None:
    run = InlineRun(order, {"order_id": "o-1"}, stubs=STUBS)
    proposed = run.propose()
    assert proposed is not None
    assert "total" not in run.run.fields
    assert run.step() == proposed


def test_people_answer_before_time_moves_on() -> None:
    clock = ManualClock()
    began = clock.now()
    asked: list[float] = []

    def resolve(interrupt: Any) -> bool:
        asked.append((clock.now() - began).total_seconds())
        return True

    graph = (
        Graph("both")
        .field("approved", bool)
        .field("total", float, default=1.0)
        .node("approve", approve)
        .node("sleeps", lambda: Sleep(60))
        .edge(START, "approve")
        .edge(START, "sleeps")
    )
    assert run_inline(graph, resolve=resolve, clock=clock).status is RunStatus.DONE
    assert asked == [0.0]


def test_a_function_may_leave_a_question_open() -> None:
    result = run_inline(order, {"order_id": "o-1"}, stubs=STUBS, resolve=lambda open_: UNANSWERED)
    assert result.status is RunStatus.WAITING
    assert [open_.field for open_ in result.interrupts] == ["approved"]


def test_a_coroutine_runs_to_its_end_inside_a_running_loop_too() -> None:
    async def node() -> dict[str, int]:
        await asyncio.sleep(0)
        return {"n": 1}

    async def notebook() -> Any:
        return run_inline(Graph("g").field("n", int).node("a", node).edge(START, "a")).fields

    assert asyncio.run(notebook()) == {"n": 1}
