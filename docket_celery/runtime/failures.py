"""Exceptions as data: bounded, readable text that nobody needs the exception's class to read.

Tolerates whatever user code may raise: exceptions that cannot be printed, that exit when they are, that are their own
cause, that carry megabytes, or whose chain has thousands of links.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from docket_celery.errors import PermanentFailure, cut, is_of, part_of
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


def is_permanent(error: BaseException) -> bool:
    """Whether it is a `PermanentFailure`, or a group that holds one, as `asyncio.TaskGroup` raises it."""
    left, seen = [error], set[int]()
    while left:
        following = left.pop()
        if is_of(following, PermanentFailure):
            return True
        if id(following) not in seen:
            seen.add(id(following))
            left.extend(_members(following))
    return False


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
    """What is behind an error, nearest first, up to the bound and never around a cycle."""
    found: list[BaseException] = []
    seen = {id(error)}
    left = deque(_behind(error))
    while left and len(found) < MOST_CAUSES:
        following = left.popleft()
        if id(following) not in seen:
            found.append(following)
            seen.add(id(following))
            left.extend(_behind(following))
    return found


def _behind(error: BaseException) -> list[BaseException]:
    """The members of a group, and what an exception was raised from or, unless that is suppressed, while handling."""
    cause, is_alone = part_of(error, "__cause__"), part_of(error, "__suppress_context__")
    from_before = cause if cause is not None or is_alone else part_of(error, "__context__")
    # Never asked whether it is true: that may raise as well.
    return [*_members(error)[:MOST_CAUSES], *([] if from_before is None else [from_before])]


def _members(error: BaseException) -> Sequence[BaseException]:
    members: Sequence[BaseException] = ()
    if is_of(error, BaseExceptionGroup):
        members = part_of(error, "exceptions", BaseExceptionGroup)
    return members
