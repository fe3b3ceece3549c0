"""The published JSON Schema of the graph document, for editors, other languages and whoever builds graphs in a UI.

It describes the form that `serializer` writes and reads; it is never used to read one, since messages of a validator
name no way to mend.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any


def document_schema() -> dict[str, Any]:
    """The schema (draft 2020-12), in a copy of the caller's own; the file itself is `graph/graph.schema.json`."""
    text = resources.files("docket_celery.graph").joinpath("graph.schema.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema
