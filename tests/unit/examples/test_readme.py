"""The README's two commands are what `.ci/run` and newcomers paste."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_the_first_two_shell_blocks_hold_one_line_each_under_their_heading() -> None:
    text = (ROOT / "README.md").read_text()
    section = text.split("\n## Two commands\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert [block.count("\n") for block in blocks[:2]] == [1, 1]
    assert all(block in section for block in blocks[:2])
    assert blocks[0].strip().endswith("-m examples.license_audit")
    assert blocks[1].strip().endswith("-m pytest")
