"""Decides under which licence a distribution stands, from everything it says and ships, and shows the evidence.

Four witnesses are heard: the SPDX expression, the free-text field, the classifiers, and the licence files' wording.
What none of them says is unknown; what they say differently is a conflict, and neither is guessed away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from examples.license_audit.spdx import category, identifiers, recognise, strictest
from examples.license_audit.texts import recognise_text

_LONGEST_FIELD: Final = 100
"""Characters; a longer free-text field is the licence itself rather than its name."""
_VAGUE: Final = ("OSI Approved", "Other/Proprietary License", "DFSG approved", "License")


def classify(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The verdict on what `inspection.describe` returned.

    `standing` is `known`, `unknown` or `conflicting`; `licence` an SPDX expression or a family's name (None when not
    known), `category` what it asks for, `evidence` one entry per witness, `conflict` why a human is needed, `bundled`
    the other licences in code that the distribution carries along.
    """
    evidence = _evidence(facts)
    licence, conflict = _decide(facts["expression"], evidence)
    standing = "known" if licence else "conflicting" if conflict and any(e["licences"] for e in evidence) else "unknown"
    named = {name for entry in evidence for name in entry["licences"]}
    carried = {name for path in facts["bundled_files"] for name in recognise_text(_read(path))}
    return {
        "standing": standing,
        "licence": licence,
        "category": _category(licence) if licence else "unknown",
        "evidence": evidence,
        "conflict": None if standing == "known" else conflict,
        "candidates": sorted(named),
        "bundled": sorted(carried - named),
    }


def _evidence(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What each witness says, in order of authority; a witness without a word is left out."""
    heard: list[tuple[str, str, frozenset[str]]] = []
    if expression := facts["expression"]:
        heard.append(("expression", expression, identifiers(expression)))
    if field := (facts["licence"] or "").strip():
        short = len(field) <= _LONGEST_FIELD and "\n" not in field
        meaning = recognise(field) if short else recognise_text(field)
        heard.append(("field", field if short else f"{field[:60]}...", meaning))
    for classifier in facts["classifiers"]:
        words = classifier.split(" :: ")[-1]
        if words == "Other/Proprietary License":
            heard.append(("classifier", words, frozenset({"LicenseRef-Proprietary"})))
        elif words not in _VAGUE:
            heard.append(("classifier", words, recognise(words)))
    for path in facts["licence_files"]:
        heard.append(("file", Path(path).name, recognise_text(_read(path))))
    return [{"witness": witness, "says": says, "licences": sorted(licences)} for witness, says, licences in heard]


def _decide(expression: str | None, evidence: Sequence[Mapping[str, Any]]) -> tuple[str | None, str | None]:
    """The licence, or the reason why there is none."""
    in_files = {name for entry in evidence if entry["witness"] == "file" for name in entry["licences"]}
    if expression:
        if category(expression) == "unknown":
            return None, f"the expression {expression!r} names a licence that is not known here"
        if in_files and not in_files & identifiers(expression):
            return None, f"declared as {expression}, but its licence file is {_list(in_files)}"
        return expression, None
    return _agree(evidence, in_files)


def _agree(evidence: Sequence[Mapping[str, Any]], in_files: set[str]) -> tuple[str | None, str | None]:
    """What the looser witnesses have in common."""
    field = [set(entry["licences"]) for entry in evidence if entry["witness"] == "field" and entry["licences"]]
    classifiers = [
        set(entry["licences"]) for entry in evidence if entry["witness"] == "classifier" and entry["licences"]
    ]
    if not field and len(classifiers) > 1 and not set.intersection(*classifiers):
        return None, f"names {_list(set.union(*classifiers))} without saying how they combine"
    claims = field + ([set.union(*classifiers)] if classifiers else []) + ([in_files] if in_files else [])
    if not claims:
        return None, "says nothing that is understood about its licence, and ships no known licence text"
    common = set.intersection(*claims)
    if not common:
        return None, f"its witnesses disagree: {'; '.join(_list(claim) for claim in claims)}"
    if len(common) == 1:
        return common.pop(), None
    if not field and not classifiers:
        return None, f"ships the texts of {_list(common)} without saying how they combine"
    return _list(common), None  # A family, such as BSD without its clauses.


def _category(licence: str) -> str:
    """The strictest reading of `a / b`, which is one of them without saying which; else the expression's own."""
    return strictest(licence.split(" / ")) if " / " in licence else category(licence)


def _list(names: set[str]) -> str:
    return " / ".join(sorted(names))


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""  # The measuring node reports a missing file.
