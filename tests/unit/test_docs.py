"""What the documentation shows is true: its Python runs, its options are the options, its links lead somewhere."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from docket_celery.config import PREFIX, Config
from docket_celery.worker.commands import docket as group

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
WITH_CODE = [page for page in PAGES if "```python" in page.read_text(encoding="utf-8")]
ROW = re.compile(r"^\| `(docket_\w+)` \|[^|]*\| `?([^|`]+)`? \|", re.MULTILINE)


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", WITH_CODE, ids=_name)
def test_the_python_of_a_page_runs_from_top_to_bottom(page: Path) -> None:
    names: dict[str, Any] = {"__name__": f"docs_{page.stem}"}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(block, _name(page), "exec"), names)


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=_name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_option_has_its_row_with_its_default() -> None:
    rows = dict(ROW.findall((ROOT / "docs" / "operations.md").read_text(encoding="utf-8")))
    shown = {PREFIX + option.name: repr(option.default).replace("'", '"') for option in fields(Config)}
    assert rows == {**shown, "docket_database_url": "-"}


def test_every_command_that_a_page_shows_exists() -> None:
    known = set(group.commands)
    for page in [ROOT / "README.md", *PAGES]:
        text = page.read_text(encoding="utf-8")
        shown = set(re.findall(r"(?:-A [\w.]+ |`)docket ([a-z]+)\b", text))
        assert shown <= known, f"{_name(page)} shows {sorted(shown - known)}"
