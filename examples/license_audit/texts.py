"""Recognises licences by their own text: which of them a licence file contains, whatever its name says."""

from __future__ import annotations

import re
from typing import Final

_HEADINGS: Final = (
    ("AGPL-3.0", "gnu affero general public license version 3"),
    ("LGPL-3.0", "gnu lesser general public license version 3"),
    ("LGPL-2.1", "gnu lesser general public license version 2.1"),
    ("LGPL-2.0", "gnu library general public license version 2"),
    ("GPL-3.0", "gnu general public license version 3"),
    ("GPL-2.0", "gnu general public license version 2"),
    ("Apache-2.0", "apache license version 2.0"),
    ("MPL-2.0", "mozilla public license version 2.0"),
    ("MPL-2.0", "mozilla public license, v. 2.0"),
    ("PSF-2.0", "python software foundation license version 2"),
    ("Unlicense", "free and unencumbered software released into the public domain"),
    ("CC0-1.0", "cc0 1.0 universal"),
    ("BSL-1.0", "boost software license - version 1.0"),
    ("Zlib", "altered source versions must be plainly marked as such"),
    ("PostgreSQL", "in no event shall the university of california be liable"),
    ("LicenseRef-Proprietary", "end user license agreement"),
)
_MIT: Final = "permission is hereby granted, free of charge, to any person obtaining a copy"
_MIT_NOTICE: Final = "permission notice shall be included in all copies"
_ISC: Final = "distribute this software for any purpose with or without fee is hereby granted"
_BSD: Final = "redistribution and use in source and binary forms"
_GNU_REFERENCE: Final = re.compile(r"(?:version \S+ of the|under the terms of the|terms and conditions of) gnu[^.]*\.")


def recognise_text(text: str) -> frozenset[str]:
    """The licences whose wording `text` contains. One file may hold several, or none that is known."""
    plain = " ".join(re.sub(r"[\"'`*_#=]|^\s*//", " ", text.lower(), flags=re.MULTILINE).split())
    plain = plain.replace(", version", " version").replace("licence", "license")
    found = {name for name, heading in _HEADINGS if heading in _GNU_REFERENCE.sub(" ", plain)}
    if _MIT in plain:
        found.add("MIT" if _MIT_NOTICE in plain else "MIT-0")
    if _ISC in plain:
        found.add("ISC" if "provided that the above copyright notice" in plain else "0BSD")
    if _BSD in plain:
        found.add(_bsd(plain))
    if any(name.startswith("LGPL") for name in found):
        found -= {"GPL-2.0", "GPL-3.0"}  # A lesser licence is written as an addition to the general one.
    return frozenset(found)


def _bsd(plain: str) -> str:
    if "all advertising materials mentioning" in plain:
        return "BSD-4-Clause"
    return "BSD-3-Clause" if "endorse or promote" in plain else "BSD-2-Clause"
