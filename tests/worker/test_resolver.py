"""Names in documents resolve to what the host registered and to nothing else, whatever else this process has loaded."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, Task
from support.apps import greet

from docket_celery.errors import ConfigError, UnknownNode
from docket_celery.worker.nodes import AppResolver

GRAPHS = """
import functools
import json
from os import system
from os.path import join as joined
from docket_celery import node


def local(): ...


@functools.wraps(local)
def wrapper(): ...


class Holder:
    def method(self): ...

    @staticmethod
    def static(): ...


CONSTANT = 1
borrowed = json.loads
anonymous = lambda: None


@node
def marked(): ...
"""
TASKS = """
from celery import shared_task


@shared_task
def shared(): ...
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a new package with a module of graphs and one of tasks."""
    name = f"shop_{abs(hash(str(tmp_path)))}"
    package = tmp_path / name
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "graphs.py").write_text(GRAPHS)
    (package / "tasks.py").write_text(TASKS)
    (package / "other.py").write_text("def outside(): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    for module in [module for module in sys.modules if module.partition(".")[0] == name]:
        del sys.modules[module]


def _app(**settings: Any) -> Celery:
    app = Celery("resolver", broker="memory://", set_as_current=False)
    app.conf.update(settings)
    return app


@pytest.fixture
def resolver(shop: str) -> AppResolver:
    return AppResolver(_app(include=[f"{shop}.graphs", f"{shop}.tasks"]), None)


def test_functions_of_included_modules_are_found_by_module_and_name(resolver: AppResolver, shop: str) -> None:
    found = resolver(f"{shop}.graphs:local")
    assert (found.__module__, found.__qualname__) == (f"{shop}.graphs", "local")
    assert resolver(f"{shop}.graphs:Holder.static").__qualname__ == "Holder.static"


def test_tasks_of_the_app_are_found_by_their_names(resolver: AppResolver, shop: str) -> None:
    assert isinstance(resolver(f"{shop}.tasks.shared"), Task)


def test_marked_functions_are_found_wherever_they_are(resolver: AppResolver, shop: str) -> None:
    assert resolver("tests.greet") is greet
    assert resolver(f"{shop}.graphs:marked").__qualname__ == "marked"


@pytest.mark.parametrize(
    "name",
    [
        "os:system", "os:popen", "posix:system", "subprocess:run", "builtins:eval", "builtins:exec", "builtins:open",
        "importlib:import_module", "sys:exit", "shutil:rmtree", "__main__:main", "celery:Celery", "pytest:main",
        "docket_celery.worker.tasks:register", "docket_celery.storage.postgres.migrate:downgrade",
    ],
)  # fmt: skip
def test_modules_that_are_merely_loaded_answer_to_nothing(resolver: AppResolver, name: str) -> None:
    with pytest.raises(UnknownNode) as refused:
        resolver(name)
    assert repr(name) in str(refused.value)


@pytest.mark.parametrize(
    "name",
    ["system", "joined", "json.loads", "borrowed", "Holder", "Holder.__init__", "Holder.__subclasses__", "CONSTANT",
     "functools.partial", "local.__globals__", "local.__call__", "__builtins__", "__loader__.get_data", "", "."],
)  # fmt: skip
def test_an_admitted_module_gives_only_the_functions_that_it_defines(
    resolver: AppResolver, shop: str, name: str
) -> None:
    with pytest.raises(UnknownNode):
        resolver(f"{shop}.graphs:{name}")


@pytest.mark.parametrize("name", ["", ":", "graphs", "system", "os.system", "os", "a" * 100_000, "\x00", "é:é"])
def test_names_that_are_none_are_refused(resolver: AppResolver, name: str) -> None:
    with pytest.raises(UnknownNode):
        resolver(name)


def test_a_module_beside_an_admitted_one_is_neither_searched_nor_imported(resolver: AppResolver, shop: str) -> None:
    with pytest.raises(UnknownNode):
        resolver(f"{shop}.other:outside")
    assert f"{shop}.other" not in sys.modules


def test_autodiscovered_modules_are_found_whatever_their_name(shop: str) -> None:
    app = _app()
    app.autodiscover_tasks([shop])
    app.autodiscover_tasks([shop], related_name="graphs")
    resolver = AppResolver(app, None)
    assert isinstance(resolver(f"{shop}.tasks.shared"), Task)
    assert resolver(f"{shop}.graphs:local").__qualname__ == "local"


def test_the_modules_of_the_imports_setting_are_found(shop: str) -> None:
    assert AppResolver(_app(imports=(f"{shop}.graphs",)), None)(f"{shop}.graphs:local").__qualname__ == "local"


def test_named_node_modules_replace_what_celery_loads(shop: str) -> None:
    resolver = AppResolver(_app(include=[f"{shop}.graphs"]), (f"{shop}.other",))
    assert resolver(f"{shop}.other:outside").__qualname__ == "outside"
    with pytest.raises(UnknownNode, match="other"):
        resolver(f"{shop}.graphs:local")


def test_a_node_module_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigError, match=r"docket_node_modules names 'no\.such\.module'"):
        AppResolver(_app(), ("no.such.module",))("no.such.module:f")
