"""Hashes and sizes every file that a distribution installed, and holds them against its own RECORD."""

from __future__ import annotations

import base64
import csv
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from examples.license_audit.inspection import open_distribution

_CHUNK: Final = 1 << 20
_NAMED: Final = 20
"""How many paths a result lists by name; the counts are complete."""
_NATIVE: Final = (b"\x7fELF", b"MZ", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe", b"\xfe\xed\xfa\xcf")


def measure(site: str, check: Callable[[], None]) -> dict[str, Any]:
    """Sizes in bytes, a digest over the whole tree, and every deviation from RECORD.

    `check` is called between files, so that a deadline can end the work. A file whose recorded hash differs is a
    mismatch, one that is not there is missing; compiled caches (`.pyc`) come and go and are left out. `recorded` is
    False when the distribution has no RECORD, and then nothing can be said.
    """
    distribution = open_distribution(site)
    files = distribution.files
    # From Python 3.12 on `files` leaves out what is not there.
    listed = {row[0] for row in csv.reader((distribution.read_text("RECORD") or "").splitlines()) if row}
    absent = listed - {str(entry) for entry in files or ()}
    tree = hashlib.sha256()
    sizes: list[tuple[int, str]] = []
    mismatches, missing = [], sorted(path for path in absent if not path.endswith(".pyc"))
    verified = native = native_bytes = 0
    for entry in sorted(files or (), key=str):
        if entry.suffix == ".pyc":
            continue
        check()
        try:
            digest, size, head = _hash(Path(str(entry.locate())))
        except OSError:
            missing.append(str(entry))
            continue
        tree.update(f"{entry}\0{size}\0{digest.hex()}\n".encode())
        sizes.append((size, str(entry)))
        if entry.hash is not None and entry.hash.mode == "sha256":
            verified += 1
            if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != entry.hash.value:
                mismatches.append(str(entry))
        if head.startswith(_NATIVE):
            native += 1
            native_bytes += size
    return {
        "recorded": files is not None,
        "files": len(sizes),
        "bytes": sum(size for size, _ in sizes),
        "tree_sha256": tree.hexdigest(),
        "verified": verified,
        "mismatches": len(mismatches),
        "missing": len(missing),
        "deviating": [f"changed: {path}" for path in mismatches[:_NAMED]] + [f"missing: {p}" for p in missing[:_NAMED]],
        "native": native,
        "native_bytes": native_bytes,
        "largest": [[path, size] for size, path in sorted(sizes, reverse=True)[:3]],
    }


def _hash(path: Path) -> tuple[bytes, int, bytes]:
    """Digest, size and first bytes."""
    digest, size, head = hashlib.sha256(), 0, b""
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            head = head or chunk[:4]
            digest.update(chunk)
            size += len(chunk)
    return digest.digest(), size, head
