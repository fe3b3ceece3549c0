"""Adds up what speaks against a distribution: points from 0 to 100, each with its reason in plain words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from examples.license_audit.spdx import CATEGORIES, strictest

_CATEGORY_POINTS: Final = {
    "permissive": 0,
    "weak copyleft": 15,
    "strong copyleft": 50,
    "proprietary": 60,
    "unknown": 45,
}
_CATEGORY_REASON: Final = {
    "weak copyleft": "weak copyleft: changes to its own files must be published",
    "strong copyleft": "strong copyleft: a product that contains it must be published under the same terms",
    "proprietary": "proprietary: its terms must be read and kept",
    "unknown": "nobody can say under which licence it may be used",
}


def assess(
    facts: Mapping[str, Any], classification: Mapping[str, Any], measurement: Mapping[str, Any], category: str
) -> dict[str, Any]:
    """`{"points", "reasons"}` for a distribution that counts as `category`. Each reason is `[points, words]`."""
    reasons: list[tuple[int, str]] = []
    if points := _CATEGORY_POINTS[category]:
        reasons.append((points, _CATEGORY_REASON[category]))
    if mismatches := measurement["mismatches"]:
        reasons.append((min(60, 30 + mismatches), f"{mismatches} files are not those that were installed"))
    if missing := measurement["missing"]:
        reasons.append((min(30, 10 + missing), f"{missing} of its files are missing"))
    if not measurement["recorded"]:
        reasons.append((20, "it has no RECORD, so nothing can be verified"))
    if not facts["licence_files"]:
        reasons.append((10, "it ships no licence text, which most licences ask to be passed on"))
    carried = strictest(classification["bundled"]) if classification["bundled"] else "permissive"
    if CATEGORIES.index(carried) > CATEGORIES.index(category):
        named = ", ".join(classification["bundled"])
        reasons.append((15, f"it carries along code under stricter terms ({named})"))
    if native := measurement["native"]:
        reasons.append((5, f"native code ({native} files), which reading the source does not cover"))
    reasons.sort(key=lambda reason: -reason[0])
    return {"points": min(100, sum(points for points, _ in reasons)), "reasons": [list(reason) for reason in reasons]}
