"""Reads what a distribution says about itself, from its metadata on disk. Judges nothing."""

from __future__ import annotations

import re
from importlib.metadata import Distribution, PackageMetadata
from pathlib import Path
from typing import Any, Final

_LICENCE_NAME: Final = re.compile(r"(licen[cs]es?|copying|copyright|eula)([._-].*)?", re.IGNORECASE)
_SUMMARY_LENGTH: Final = 200


def open_distribution(site: str) -> Distribution:
    """The distribution whose metadata directory is `site`. Raises `FileNotFoundError` when it has gone."""
    if not Path(site).is_dir():
        raise FileNotFoundError(f"no metadata directory {site}: the distribution was removed since the audit began")
    return Distribution.at(site)


def describe(site: str) -> dict[str, Any]:
    """Name, version, what is declared about the licence, and which licence files are there.

    `licence_files` are the distribution's own, `bundled_files` those of code that it carries along; both absolute.
    """
    distribution = open_distribution(site)
    metadata = distribution.metadata
    own, bundled = _licence_files(distribution)
    return {
        "name": metadata["Name"],
        "version": distribution.version,
        "summary": (_header(metadata, "Summary") or "")[:_SUMMARY_LENGTH],
        "expression": _header(metadata, "License-Expression"),
        "licence": _header(metadata, "License"),
        "classifiers": [line for line in metadata.get_all("Classifier") or [] if line.startswith("License ::")],
        "licence_files": own,
        "bundled_files": bundled,
        "editable": '"editable": true' in (distribution.read_text("direct_url.json") or ""),
        "installer": (distribution.read_text("INSTALLER") or "").strip() or None,
    }


def _header(metadata: PackageMetadata, name: str) -> str | None:
    found = metadata.get_all(name)
    return found[0] if found else None


def _licence_files(distribution: Distribution) -> tuple[list[str], list[str]]:
    own: list[str] = []
    bundled: list[str] = []
    for entry in sorted(distribution.files or []):
        if not _LICENCE_NAME.fullmatch(entry.name) or entry.suffix in (".py", ".pyc"):
            continue
        place = entry.parts[:-1]
        at_the_top = len(place) <= 1 or (len(place) == 2 and place[1] in ("licenses", "license_files"))
        (own if at_the_top and ".dist-info" in "".join(place[:1]) else bundled).append(str(entry.locate()))
    return own, bundled
