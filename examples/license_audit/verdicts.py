"""Who answers the interrupts: a stated policy, or whoever sits at the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from rich.console import Console
from rich.prompt import Confirm, Prompt

from examples.license_audit.spdx import category, strictest

POLICY: Final = (
    "a licence nobody knows is accepted as unknown and keeps its risk; "
    "conflicting ones are all taken to apply together, and accepted unless that is strong copyleft or proprietary"
)

Answer = Callable[[Mapping[str, Any]], dict[str, Any]]
"""From an interrupt's payload to the verdict."""


def by_policy(question: Mapping[str, Any]) -> dict[str, Any]:
    """The verdict that `POLICY` states."""
    candidates = question["candidates"]
    if not candidates:
        return {
            "licence": "UNKNOWN (accepted by policy)",
            "category": "unknown",
            "accept": True,
            "note": "no witness names a licence",
        }
    strict = strictest(candidates)
    return {
        "licence": " AND ".join(candidates),
        "category": strict,
        "accept": strict in ("permissive", "weak copyleft"),
        "note": "by policy: all named licences together",
    }


def by_asking(console: Console) -> Answer:
    """A verdict given at the terminal; the policy's is offered as the default."""

    def ask(question: Mapping[str, Any]) -> dict[str, Any]:
        offered = by_policy(question)
        console.rule(f"{question['distribution']} {question['version']}: {question['standing']}")
        console.print(question["conflict"], markup=False)
        for entry in question["evidence"]:
            meaning = ", ".join(entry["licences"]) or "not understood"
            console.print(f"  {entry['witness']:>10}  {entry['says']}  ->  {meaning}", markup=False)
        licence = Prompt.ask("licence", console=console, default=offered["licence"])
        accept = Confirm.ask("accept it", console=console, default=offered["accept"])
        kind = offered["category"] if licence == offered["licence"] else category(licence)
        return {"licence": licence, "category": kind, "accept": accept, "note": "decided at the terminal"}

    return ask
