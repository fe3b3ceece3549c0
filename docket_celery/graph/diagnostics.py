"""What is wrong with a graph, as data: every problem at once, each with a code, a place and a way to mend it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from docket_celery.errors import GraphFormatError


class Severity(StrEnum):
    """An error keeps a graph from being published; a warning does not."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """One finding. `code` is stable; `path` points into the document, such as `nodes.price.timeout`."""

    code: str
    path: str
    message: str
    severity: Severity = Severity.ERROR

    def __str__(self) -> str:
        return f"{self.severity.value} {self.code} at {self.path}: {self.message}"


def malformed(error: GraphFormatError) -> Diagnostic:
    """Why a document cannot be read at all, as the only finding about it."""
    path, _, message = str(error).partition(": ")
    return Diagnostic(code="malformed_document", path=path, message=message)
