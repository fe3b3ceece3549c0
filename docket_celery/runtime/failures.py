"""Exceptions as data: bounded, readable text that nobody needs the exception's class to read.

Tolerates whatever user code may raise: exceptions that cannot be printed, that exit when they are, that are their own
cause, that carry megabytes, or whose chain has thousands of links.
"""

from __future__ import annotations

from docket_celery.errors import cut
from docket_celery.run.document import Failure, JsonValue

LONGEST_MESSAGE = 4_000
MOST_CAUSES = 5


def failure_of(error: BaseException, *, code: str, node: str) -> Failure:
    """The durable description of what a node raised, with its nearest causes."""
    causes: list[JsonValue] = [
        {"type": type_name(cause), "message": message_of(cause)} for cause in _causes(error)[:MOST_CAUSES]
    ]
    return Failure(
        code=code,
        message=message_of(error),
        node=node,
        error_type=type_name(error),
        details={"causes": causes} if causes else {},
    )


def type_name(error: BaseException) -> str:
    """Module and name of the exception's class."""
    return printable(f"{type(error).__module__}.{type(error).__qualname__}", 200)


def message_of(error: BaseException) -> str:
    """The exception's own text; a placeholder where it has none or cannot give it."""
    try:
        text = str(error)
    except BaseException as unprintable:
        text = f"<{type(error).__name__} cannot be printed: its __str__ raised {type(unprintable).__name__}>"
    return printable(text) or f"<{type(error).__name__} without a message>"


def printable(text: str, longest: int = LONGEST_MESSAGE) -> str:
    """`text` cut to a bounded length, with NUL and lone surrogates shown as escapes."""
    return cut(text, longest).replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")


def _causes(error: BaseException) -> list[BaseException]:
    """The chain of causes and contexts, nearest first, up to the bound and never around a cycle."""
    found: list[BaseException] = []
    seen = {id(error)}
    following = _behind(error)
    while following is not None and id(following) not in seen and len(found) < MOST_CAUSES:
        found.append(following)
        seen.add(id(following))
        following = _behind(following)
    return found


def _behind(error: BaseException) -> BaseException | None:
    """What an exception was raised from or, unless that is suppressed, while handling. Never asks whether one is true:
    that may raise as well.
    """
    if error.__cause__ is not None or error.__suppress_context__:
        return error.__cause__
    return error.__context__
