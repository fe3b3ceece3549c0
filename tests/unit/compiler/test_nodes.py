"""Node contracts and resolvers."""

from __future__ import annotations

from datetime import datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from docket_celery.compiler.nodes import bind, chain, contract_of, local_resolver
from docket_celery.errors import UnknownNode
from docket_celery.graph.document import Graph
from docket_celery.graph.elements import Field, FieldInput, Node

if TYPE_CHECKING:
    from somewhere import Hidden  # type: ignore[import-not-found]


def typed(at: datetime, hidden: Hidden, plain: str, ctx: Any, maybe: int = 0) -> None: ...


async def asynchronous() -> None: ...


class Task:
    """Looks like a Celery task."""

    name = "proj.tasks.charge"

    def run(self, receipt: str, at: datetime) -> None: ...

    def __call__(self, *args: Any, **kwargs: Any) -> None: ...


def test_a_contract_tells_how_a_callable_is_called() -> None:
    contract = contract_of(typed)
    assert contract.parameters == {"at": True, "hidden": True, "plain": True, "maybe": False}
    assert (contract.wants_context, contract.is_async, contract.takes_any) == (True, False, False)
    assert contract_of(asynchronous).is_async
    assert contract_of(lambda **anything: None).takes_any


def test_text_annotations_are_resolved_one_by_one() -> None:
    annotations = contract_of(typed).annotations
    assert annotations["at"] is datetime
    assert annotations["hidden"] == "Hidden"
    assert annotations["plain"] is str


def test_a_celery_task_is_bound_through_run_and_called_itself() -> None:
    task: Any = Task()
    contract = contract_of(task)
    assert contract.call is task
    assert contract.parameters == {"receipt": True, "at": True}
    assert contract.annotations["at"] is datetime


def test_an_optional_parameter_that_is_no_field_is_left_out_for_good() -> None:
    node = Node(id="a", call="a")
    fields = {name: Field(name=name) for name in ("at", "hidden", "plain", "maybe")}
    bound = bind(node, contract_of(typed), {name: fields[name] for name in ("at", "hidden", "plain")})
    assert [parameter.name for parameter in bound] == ["at", "hidden", "plain"]
    assert [parameter.revive is not None for parameter in bound] == [True, False, False]
    bound = bind(node, contract_of(typed), fields)
    assert [parameter.source for parameter in bound if parameter.name == "maybe"] == [
        FieldInput(field="maybe", optional=True)
    ]


def test_a_local_resolver_answers_from_what_the_author_passed() -> None:
    resolve = local_resolver(Graph("g").node("a", typed, inputs={}).node("b", "proj:other"))
    assert resolve(f"{__name__}:typed") is typed
    with pytest.raises(UnknownNode, match="proj:other"):
        resolve("proj:other")


def test_a_chain_asks_one_resolver_after_the_other() -> None:
    task: Any = SimpleNamespace(name="x", run=lambda: None)
    first = local_resolver(Graph("g").node("a", typed))
    second = local_resolver(Graph("h").node("b", task))
    resolve = chain(first, second)
    assert resolve("x") is task
    assert resolve(f"{__name__}:typed") is typed
    with pytest.raises(UnknownNode, match="'y'"):
        resolve("y")
