"""The SQL of this store, from `sql/*.sql`.

A statement begins at a line `-- name: <name>` and reaches to the next one; `-- part: <name>` begins a piece that others
include as `{name}`. The statements of transitions are put together from parts in `transitions` and `together`.
`{schema}` stands for the quoted name of the configured schema: every table is named in full, so that nothing depends on
a session's search path. `{channel}` stands for the channel of its listener.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from importlib.resources import files
from typing import Final

from docket_celery.errors import ConfigError
from docket_celery.storage.postgres import together, transitions

_HEADER: Final = re.compile(r"^-- (name|part): (\w+)$", re.MULTILINE)
_BRACES: Final = re.compile(r"\{(\w+)\}")
_PLACEHOLDER: Final = re.compile(r"%\((\w+)\)s")
_LONGEST_IDENTIFIER: Final = 63
_SIMPLE: Final = re.compile(r"[a-z_][a-z0-9_]{0,57}")
"""Names of schemas that need no quotes and leave room for `_wake`."""
_TELLING: Final = ("telling", "telling_unless_claimed")
"""Parts that are left out, to the last character, where nobody listens."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement with numbered placeholders, and the parameters' names in that order.

    Numbered once here: given names, the driver would read the text of a long statement again at each execution.
    """

    text: bytes
    names: tuple[str, ...]


class Queries:
    """The named statements, as bytes for the driver, filled in for one schema. With `notify`, those that make a run due
    tell the listener when they commit.
    """

    def __init__(self, schema: str, *, notify: bool = False) -> None:
        quoted, channel = quote(schema), channel_of(schema)
        texts = {
            name: text.replace("{schema}", quoted).replace("{channel}", channel)
            for name, text in _statements(notify).items()
        }
        self._named = {name: text.encode() for name, text in texts.items()}
        self._numbered = {name: _numbered(text) for name, text in texts.items()}

    def __getitem__(self, name: str) -> bytes:
        """The statement with its parameters by name, as the driver's plain cursor takes them."""
        return self._named[name]

    def names(self) -> Collection[str]:
        """Of all statements."""
        return self._named.keys()

    def numbered(self, name: str) -> Statement:
        """The same for a raw cursor."""
        return self._numbered[name]


def quote(schema: str) -> str:
    """The schema's name as an SQL identifier. `ConfigError` for a name that could not stand for itself everywhere."""
    if not schema or len(schema.encode(errors="replace")) > _LONGEST_IDENTIFIER:
        raise ConfigError(f"docket_schema must have from 1 to {_LONGEST_IDENTIFIER} bytes, got {schema!r}")
    if any(character in "%:{}\\" or not character.isprintable() for character in schema):
        raise ConfigError(f"docket_schema must be printable, without any of % : {{ }} \\, got {schema!r}")
    return '"' + schema.replace('"', '""') + '"'


def channel_of(schema: str) -> str:
    """The channel on which the schema's commits are told: `docket_wake` for `docket`, a digest for odd or long names.

    A plain word, so that it needs no quotes in a console: `NOTIFY docket_wake`.
    """
    name = schema if _SIMPLE.fullmatch(schema) else f"docket_{blake2b(schema.encode(), digest_size=8).hexdigest()}"
    return f"{name}_wake"


@lru_cache(maxsize=2)
def _statements(notify: bool) -> Mapping[str, str]:
    """All statements with their parts put in, schema and channel still open."""
    found: dict[str, dict[str, str]] = {"name": {}, "part": {}}
    for file in sorted(files(__package__).joinpath("sql").iterdir(), key=lambda file: file.name):
        if not file.name.endswith(".sql"):
            continue
        _, *pieces = _HEADER.split(file.read_text(encoding="utf-8"))
        for kind, name, text in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True):
            if name in found[kind]:
                raise ValueError(f"{file.name}: the {kind} {name!r} is defined twice")
            found[kind][name] = _bare(text)
    found["name"] |= dict(transitions.statements()) | dict(together.statements())
    parts = found["part"] if notify else {**found["part"], **dict.fromkeys(_TELLING, "")}
    return {name: _with_parts(text, parts) for name, text in found["name"].items()}


def _numbered(text: str) -> Statement:
    numbers: dict[str, int] = {}
    numbered = _PLACEHOLDER.sub(lambda found: f"${numbers.setdefault(found[1], len(numbers) + 1)}", text)
    return Statement(text=numbered.encode(), names=tuple(numbers))


def _bare(text: str) -> str:
    """The statement without comments and indentation: it is sent whenever it is not prepared."""
    lines = (line.strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("--"))


def _with_parts(text: str, parts: Mapping[str, str]) -> str:
    """The text with its parts, and theirs, put in; other words in braces stand."""
    return _BRACES.sub(lambda found: _with_parts(parts[found[1]], parts) if found[1] in parts else found[0], text)
