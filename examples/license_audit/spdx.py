"""Licence identifiers: what they permit, how people spell them, how they combine.

A table and three pure functions. It knows the licences that Python distributions really use; anything else is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

CATEGORIES: Final = ("permissive", "weak copyleft", "strong copyleft", "proprietary", "unknown")
"""From the least to the most demanding."""

_PERMISSIVE: Final = (
    "0BSD AFL-3.0 Apache-2.0 Artistic-2.0 BSD-2-Clause BSD-3-Clause BSD-4-Clause BSL-1.0 CC0-1.0 CNRI-Python HPND ISC "
    "MIT MIT-0 MIT-CMU NCSA OpenSSL PostgreSQL PSF-2.0 Python-2.0 Unlicense W3C WTFPL X11 Zlib ZPL-2.1"
)
_WEAK: Final = "CDDL-1.0 EPL-1.0 EPL-2.0 EUPL-1.2 LGPL-2.0 LGPL-2.1 LGPL-3.0 MPL-1.1 MPL-2.0"
_STRONG: Final = "AGPL-3.0 GPL-2.0 GPL-3.0 OSL-3.0 SSPL-1.0"
_PROPRIETARY: Final = "LicenseRef-Proprietary"

_CATEGORY: Final = {
    name.lower(): category
    for category, names in zip(CATEGORIES, (_PERMISSIVE, _WEAK, _STRONG, _PROPRIETARY), strict=False)
    for name in names.split()
}
_SPELLING: Final = {
    name.lower(): name for names in (_PERMISSIVE, _WEAK, _STRONG, _PROPRIETARY) for name in names.split()
}

BSD: Final = frozenset({"BSD-2-Clause", "BSD-3-Clause"})
LGPL: Final = frozenset({"LGPL-2.0", "LGPL-2.1", "LGPL-3.0"})
GPL: Final = frozenset({"GPL-2.0", "GPL-3.0"})

_PHRASES: Final = (
    # The first that matches wins, so the narrower ones come first. One that names a family says no more than that.
    (r"affero|agpl", frozenset({"AGPL-3.0"})),
    (r"(lesser|library) general public|lgpl.*", LGPL),
    (r"general public|gpl.*", GPL),
    (r"mozilla|mpl", frozenset({"MPL-2.0"})),
    (r"apache", frozenset({"Apache-2.0"})),
    (
        r"(bsd|clause).*\b(3|three|new|revised)|(3|three|new|revised|modified).*\b(bsd|clause)",
        frozenset({"BSD-3-Clause"}),
    ),
    (r"(bsd|clause).*\b(2|two|simplified)|(2|two|simplified).*\b(bsd|clause)", frozenset({"BSD-2-Clause"})),
    (r"\b0bsd|zero.clause", frozenset({"0BSD"})),
    (r"bsd", BSD),
    (r"\bmit-0|mit no attribution", frozenset({"MIT-0"})),
    (r"\bmit\b|expat", frozenset({"MIT"})),
    (r"\bisc\b", frozenset({"ISC"})),
    (r"python software foundation|\bpsf", frozenset({"PSF-2.0"})),
    (r"unlicense", frozenset({"Unlicense"})),
    (r"\bcc0", frozenset({"CC0-1.0"})),
    (r"zlib", frozenset({"Zlib"})),
    (r"zope|\bzpl", frozenset({"ZPL-2.1"})),
    (r"boost", frozenset({"BSL-1.0"})),
    (r"eclipse|\bepl", frozenset({"EPL-2.0"})),
    (r"historical permission|hpnd", frozenset({"HPND"})),
    (r"proprietary|commercial|all rights reserved", frozenset({"LicenseRef-Proprietary"})),
)


def plain(identifier: str) -> str:
    """The identifier in its usual spelling, without `-only`, `-or-later` and `+`."""
    bare = re.sub(r"(-only|-or-later|\+)$", "", identifier.strip(), flags=re.IGNORECASE)
    return _SPELLING.get(bare.lower(), bare)


def recognise(words: str) -> frozenset[str]:
    """The licences that free text of a few words may mean: one, a family, or none."""
    exact = plain(words)
    if exact.lower() in _CATEGORY:
        return frozenset({exact})
    lowered = " ".join(words.lower().split())
    for pattern, licences in _PHRASES:
        if re.search(pattern, lowered):
            version = re.search(r"(?<!\d)v?([23])(?:\.(\d))?", lowered)
            exactly = {name for name in licences if version and f"-{version[1]}.{version[2] or 0}" in name}
            return frozenset(exactly) if exactly and licences in (LGPL, GPL) else licences
    return frozenset()


def identifiers(expression: str) -> frozenset[str]:
    """The plain identifiers in an SPDX expression; exceptions after WITH are left out."""
    words = re.sub(r"\bWITH\s+[\w.+-]+", " ", expression, flags=re.IGNORECASE)
    return frozenset(plain(word) for word in re.findall(r"[\w.+-]+", words) if word.upper() not in ("AND", "OR"))


def category(expression: str) -> str:
    """What an SPDX expression asks for: of alternatives the mildest, of a combination the strictest."""
    words = re.sub(r"\bWITH\s+[\w.+-]+", " ", expression, flags=re.IGNORECASE)
    tokens = re.findall(r"[\w.+-]+|[()]", words)
    try:
        rank, rest = _alternatives(tokens)
    except IndexError:
        return "unknown"
    return "unknown" if rest else CATEGORIES[rank]


def strictest(licences: Iterable[str]) -> str:
    """The most demanding category among several licences; unknown counts as the most demanding."""
    return max((category(licence) for licence in licences), key=CATEGORIES.index, default="unknown")


def _alternatives(tokens: list[str]) -> tuple[int, list[str]]:
    rank, rest = _combination(tokens)
    while rest and rest[0].upper() == "OR":
        other, rest = _combination(rest[1:])
        rank = min(rank, other)
    return rank, rest


def _combination(tokens: list[str]) -> tuple[int, list[str]]:
    rank, rest = _licence(tokens)
    while rest and rest[0].upper() == "AND":
        other, rest = _licence(rest[1:])
        rank = max(rank, other)
    return rank, rest


def _licence(tokens: list[str]) -> tuple[int, list[str]]:
    if tokens[0] == "(":
        rank, rest = _alternatives(tokens[1:])
        return rank, rest[1:] if rest[0] == ")" else rest
    return CATEGORIES.index(_CATEGORY.get(plain(tokens[0]).lower(), "unknown")), tokens[1:]
