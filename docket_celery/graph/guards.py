"""Guards on edges: CEL expressions over fields.

Parsed once, evaluated on the referenced fields alone. CEL compares a mixed pair of integer and float as floats.
Everything that can go wrong is a `GuardError`; a guard never answers anything but true or false.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

import cel

from docket_celery.errors import GuardError


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


MAX_LENGTH: Final = 4_000
"""Characters of a guard."""
MAX_NESTING: Final = 32
"""Brackets within brackets."""
MAX_COMPREHENSIONS: Final = 2
"""Comprehensions within one another: no deadline covers a guard, and each level multiplies its cost."""

CEL_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
CEL_RESERVED: Final = _words(
    "as break const continue else false for function if import in let loop namespace null package return true var void "
    "while"
)
CEL_TYPES: Final = _words("bool bytes double duration dyn int list map null_type string timestamp type uint")
"""Names that denote a type, as in `type(total) == int`."""

_FUNCTIONS: Final = _words(
    "bytes contains double duration dyn endsWith getDate getDayOfMonth getDayOfWeek getDayOfYear getFullYear getHours "
    "getMilliseconds getMinutes getMonth getSeconds int matches size startsWith string timestamp type uint"
)
_OPERATORS: Final = _words(
    "!_ -_ _!=_ _%_ _&&_ _*_ _+_ _-_ _/_ _<=_ _<_ _==_ _>=_ _>_ _?_:_ _[_] _||_ @in @not_strictly_false"
)
_MACROS: Final = _words("all exists exists_one existsOne filter map")

_LEAST_INT: Final = -(2**63)
_MOST_INT: Final = 2**63 - 1

_TOKEN: Final = re.compile(
    r"""
    (?P<skip> \s+ | //[^\n]*
      | [bB]?[rR][bB]?(?: \"{3}.*?\"{3} | '{3}.*?'{3} | "[^"\n]*" | '[^'\n]*' )
      | [bB]?(?: \"{3}(?:\\.|[^\\])*?\"{3} | '{3}(?:\\.|[^\\])*?'{3} | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' )
      | [0-9][0-9A-Za-z]* )
    | (?P<token> [A-Za-z_][A-Za-z0-9_]* | . )
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """A parsed guard.

    fields             names it reads, sorted: its variables without those that a comprehension binds
    types              names of CEL types it mentions
    unknown_functions  functions it calls that CEL does not have; it parses all the same, but can never hold
    """

    source: str
    fields: tuple[str, ...]
    types: tuple[str, ...] = ()
    unknown_functions: tuple[str, ...] = ()
    _program: cel.Program = field(compare=False, repr=False)

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Whether the guard is true of these field values; a field without a value is null.

        Raises `GuardError` when the evaluation fails, yields anything but a boolean, or meets an integer beyond 64
        bits.
        """
        arguments = {name: values.get(name) for name in self.fields}
        for name, value in arguments.items():
            if not _fits(value):
                raise GuardError(f"guard {self.source!r}: field {name!r} holds an integer beyond 64 bits")
        try:
            result = self._program.execute(arguments)
        except BaseException as error:
            raise _guard_error(self.source, error) from error
        if type(result) is not bool:
            raise GuardError(f"guard {self.source!r} must yield true or false, got {result!r:.100}")
        return result


@lru_cache(maxsize=4_096)
def parse_guard(source: str) -> Guard:
    """Parses a CEL expression; `GuardError` when it is not one, or too long or too deeply nested."""
    if len(source) > MAX_LENGTH:
        raise GuardError(f"guard has {len(source)} characters; at most {MAX_LENGTH} are allowed: {source[:60]!r}...")
    tokens = [match["token"] for match in _TOKEN.finditer(source) if match["token"]]
    _check_nesting(source, tokens)
    try:
        program = cel.compile(source)
        variables, functions = set(program.variables()), set(program.functions())
    except BaseException as error:
        raise _guard_error(source, error) from error
    if absolute := next((name for name in sorted(variables) if name.startswith(".")), None):
        raise GuardError(f"guard {source!r}: {absolute!r} must be written without the leading dot")
    free = variables & set(_free_names(source, tokens))
    return Guard(
        source=source,
        fields=tuple(sorted(free - CEL_TYPES)),
        types=tuple(sorted(free & CEL_TYPES)),
        unknown_functions=tuple(sorted(functions - _FUNCTIONS - _OPERATORS)),
        _program=program,
    )


def _check_nesting(source: str, tokens: list[str]) -> None:
    depth = 0
    for token, following in pairwise([*tokens, ""]):
        depth += (token in "([{") - (token in ")]}")
        if depth > MAX_NESTING:
            raise GuardError(f"guard nests brackets deeper than {MAX_NESTING}: {source[:60]!r}...")
        if following == "{" and CEL_IDENTIFIER.fullmatch(token) and token not in CEL_RESERVED:
            raise GuardError(f"guard {source!r}: {token!r} is no message type; there are none")


def _free_names(source: str, tokens: list[str]) -> Iterator[str]:
    """Identifiers that stand for a variable and are not bound by a comprehension around them."""
    bound: list[tuple[int, str]] = []
    depth = 0
    padded = ["", "", *tokens, "", ""]
    for index in range(2, len(padded) - 2):
        before_last, last, token, following, after = padded[index - 2 : index + 3]
        if token in "([{":
            depth += 1
            if token == "(" and before_last == "." and last in _MACROS and after == ",":
                bound.append((depth, following))
                if len(bound) > MAX_COMPREHENSIONS:
                    raise GuardError(f"guard {source!r} nests comprehensions deeper than {MAX_COMPREHENSIONS}")
        elif token in ")]}":
            while bound and bound[-1][0] == depth:
                bound.pop()
            depth -= 1
        elif last != "." and following != "(" and all(token != name for _, name in bound):
            yield token


def _fits(value: Any) -> bool:
    """Whether CEL can take every number in the value as it is: beyond 64 bits it would quietly make a float of it."""
    kind = type(value)
    if kind is int:
        return _LEAST_INT <= int(value) <= _MOST_INT
    if kind is list:
        return all(map(_fits, value))
    if kind is dict:
        return all(map(_fits, value.values()))
    return True


def _guard_error(source: str, error: BaseException) -> GuardError:
    """The error as ours; one that is not the evaluator's own (an interruption of this process) is raised on.

    A panic in the evaluator derives from `BaseException` and is told by its module.
    """
    if not isinstance(error, Exception) and type(error).__module__ != "pyo3_runtime":
        raise error
    text = " ".join(str(error).split())
    return GuardError(f"guard {source!r}: {text[:300]}")
