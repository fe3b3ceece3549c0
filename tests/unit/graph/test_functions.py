"""Names and parameters of callables."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import pytest

from docket_celery.errors import GraphFormatError, UnknownNode
from docket_celery.graph.functions import name_of, node, parameters_of, registered


@node
def marked_plainly(a: int) -> None: ...


@node(name="billing.charge")
def marked_by_name(a: int) -> None: ...


class Service:
    def method(self) -> None: ...

    @classmethod
    def of_class(cls) -> None: ...


def test_a_marked_function_is_found_under_its_name() -> None:
    assert name_of(marked_plainly) == f"{__name__}:marked_plainly"
    assert registered(f"{__name__}:marked_plainly") is marked_plainly
    assert name_of(marked_by_name) == "billing.charge"
    assert registered("billing.charge") is marked_by_name


def test_an_unmarked_name_is_unknown() -> None:
    with pytest.raises(UnknownNode, match=r"no\.such"):
        registered("no.such")


def test_a_name_belongs_to_one_function_which_may_be_defined_again() -> None:
    def define() -> Any:
        @node(name="test.defined.twice")
        def again() -> None: ...

        return again

    define()
    latest = define()
    assert registered("test.defined.twice") is latest
    with pytest.raises(GraphFormatError, match=r"billing\.charge"):
        node(name="billing.charge")(marked_plainly)


def test_a_wrapper_does_not_inherit_the_mark() -> None:
    @functools.wraps(marked_by_name)
    def wrapper(a: int) -> None: ...

    assert name_of(wrapper) == f"{__name__}:marked_by_name"


def test_callables_without_a_name_of_their_own_are_refused() -> None:
    nameless: list[Any] = [Service().method, functools.partial(marked_plainly, 1), 5, [].append]
    for function in nameless:
        with pytest.raises(GraphFormatError):
            name_of(function)
    assert name_of(Service.of_class) == f"{__name__}:Service.of_class"
    assert name_of(len) == "builtins:len"


def test_parameters_are_those_that_a_call_by_keyword_can_fill() -> None:
    def function(a: int, b: int = 1, *rest: int, c: int, ctx: Any, **more: Any) -> None: ...

    assert [parameter.name for parameter in parameters_of(function)] == ["a", "b", "c", "ctx", "more"]


def test_a_parameter_that_only_a_position_can_fill_is_refused() -> None:
    def function(a: int, /) -> None: ...

    with pytest.raises(GraphFormatError, match="'a' is positional-only"):
        parameters_of(function)


def test_a_tasks_parameters_are_those_of_its_run_method() -> None:
    task: Any = SimpleNamespace(name="t", run=lambda x: None)
    assert [parameter.name for parameter in parameters_of(task)] == ["x"]
