"""Run and event documents as versioned JSON text: the only place that knows the wire versions.

A run's document is what its row does not say in columns of its own: tasks, interrupts, barriers, answers, outputs,
failure. Field values are stored beside it and never here. Parts that are empty are left out.

Whatever is not understood to the last key is `CorruptRecord`: an unknown version, malformed text, a missing or an
unknown key. An older worker then hands the run back instead of dropping what a newer one has written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from docket_celery.errors import CorruptRecord
from docket_celery.run.document import Failure, JsonValue, OpenInterrupt, Run, Task
from docket_celery.run.values import decode, encode

_VERSION: Final = 1
_TASK_STATES: Final = frozenset({"ready", "retrying", "interrupted", "sleeping", "finished"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """The decoded document of a run, by the names of `Run`."""

    tasks: tuple[Task, ...] = ()
    interrupts: tuple[OpenInterrupt, ...] = ()
    arrived: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    answered: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    failure: Failure | None = None


def encode_state(run: Run) -> str:
    """The run's document; its values must be normalised."""
    document: dict[str, JsonValue] = {"v": _VERSION}
    if run.tasks:
        document["tasks"] = [_task(task) for task in run.tasks]
    if run.interrupts:
        document["interrupts"] = [_interrupt(interrupt) for interrupt in run.interrupts]
    if run.arrived:
        document["arrived"] = {edge: list(sources) for edge, sources in run.arrived.items()}
    if run.answered:
        document["answered"] = list(run.answered)
    if run.outputs:
        document["outputs"] = list(run.outputs)
    if run.failure is not None:
        document["failure"] = _failure(run.failure)
    return encode(document)


EMPTY_STATE: Final = encode({"v": _VERSION})
"""The document of a run with nothing left open."""


def decode_state(text: str) -> RunState:
    """Reads what `encode_state` wrote, or raises `CorruptRecord`."""
    record = _Record.of_document(text)
    state = RunState(
        tasks=tuple(_read_task(item) for item in record.records("tasks")),
        interrupts=tuple(_read_interrupt(item) for item in record.records("interrupts")),
        arrived=_read_arrived(record.take("arrived", dict, {})),
        answered=_texts(record.take("answered", list, []), "answered"),
        outputs=_texts(record.take("outputs", list, []), "outputs"),
        failure=_read_failure(record.record("failure")),
    )
    record.end()
    return state


def encode_event_data(data: Mapping[str, JsonValue]) -> str:
    """An event's data; its values must be normalised."""
    return encode({"v": _VERSION, "data": dict(data)})


def decode_event_data(text: str) -> dict[str, JsonValue]:
    """Reads what `encode_event_data` wrote, or raises `CorruptRecord`."""
    record = _Record.of_document(text)
    data: dict[str, JsonValue] = record.take("data", dict)
    record.end()
    return data


def decode_value(text: str) -> JsonValue:
    """A stored value; `CorruptRecord` when the text is not one."""
    try:
        return decode(text)
    except (ValueError, RecursionError) as error:
        raise CorruptRecord(f"stored text cannot be read as a value: {error}") from error


def encode_instant(instant: datetime) -> str:
    """An aware instant as exact UTC text with microseconds, `2026-01-02T03:04:05.000006Z`."""
    if instant.tzinfo is None:
        raise ValueError(f"an instant needs a time zone, got {instant!r}")
    return instant.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def decode_instant(text: str) -> datetime:
    """Reads what `encode_instant` wrote, or raises `CorruptRecord`."""
    try:
        instant = datetime.fromisoformat(text)
    except ValueError as error:
        raise CorruptRecord(f"{text!r} is not an instant") from error
    if instant.utcoffset() != timedelta(0):
        raise CorruptRecord(f"{text!r} is not an instant in UTC")
    return instant.astimezone(UTC)


def _task(task: Task) -> dict[str, JsonValue]:
    written: dict[str, JsonValue] = {"node": task.node, "step": task.step, "state": task.state, "attempt": task.attempt}
    if task.due_at is not None:
        written["due_at"] = encode_instant(task.due_at)
    if task.answers:
        written["answers"] = dict(task.answers)
    if task.asked:
        written["asked"] = task.asked
    if task.writes is not None:
        written["writes"] = dict(task.writes)
    return written


def _read_task(record: _Record) -> Task:
    state = record.take("state", str)
    if state not in _TASK_STATES:
        raise CorruptRecord(f"{record.what} has the unknown state {state!r}")
    task = Task(
        node=record.take("node", str),
        step=record.take("step", int),
        state=state,
        attempt=record.take("attempt", int),
        due_at=record.instant("due_at"),
        answers=record.take("answers", dict, {}),
        asked=record.take("asked", int, 0),
        writes=record.take("writes", dict, None),
    )
    record.end()
    return task


def _interrupt(interrupt: OpenInterrupt) -> dict[str, JsonValue]:
    written: dict[str, JsonValue] = {
        "id": interrupt.id,
        "node": interrupt.node,
        "step": interrupt.step,
        "field": interrupt.field,
        "schema": dict(interrupt.schema),
        "payload": interrupt.payload,
    }
    if interrupt.deadline is not None:
        written["deadline"] = encode_instant(interrupt.deadline)
        written["default"] = interrupt.default
    if interrupt.opened_at is not None:
        written["opened_at"] = encode_instant(interrupt.opened_at)
    return written


def _read_interrupt(record: _Record) -> OpenInterrupt:
    deadline = record.instant("deadline")
    interrupt = OpenInterrupt(
        id=record.take("id", str),
        node=record.take("node", str),
        step=record.take("step", int),
        field=record.take("field", str),
        schema=record.take("schema", dict),
        payload=record.take("payload", object),
        deadline=deadline,
        default=None if deadline is None else record.take("default", object),
        opened_at=record.instant("opened_at"),
    )
    record.end()
    return interrupt


def _failure(failure: Failure) -> dict[str, JsonValue]:
    return {
        "code": failure.code,
        "message": failure.message,
        "node": failure.node,
        "error_type": failure.error_type,
        "details": dict(failure.details),
    }


def _read_failure(record: _Record | None) -> Failure | None:
    if record is None:
        return None
    failure = Failure(
        code=record.take("code", str),
        message=record.take("message", str),
        node=record.take("node", (str, type(None))),
        error_type=record.take("error_type", (str, type(None))),
        details=record.take("details", dict),
    )
    record.end()
    return failure


def _read_arrived(value: Mapping[str, JsonValue]) -> dict[str, tuple[str, ...]]:
    return {edge: _texts(sources, f"arrived[{edge!r}]") for edge, sources in value.items()}


def _texts(value: JsonValue, what: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise CorruptRecord(f"{what} should be a list of strings")
    return tuple(value)


_REQUIRED: Final[Any] = object()


class _Record:
    """A JSON object whose keys are taken one by one, each with its type; `end` refuses what is left."""

    def __init__(self, value: JsonValue, what: str) -> None:
        if not isinstance(value, dict):
            raise CorruptRecord(f"{what} should be an object, got {type(value).__name__}")
        self.what = what
        self._left = dict(value)

    @classmethod
    def of_document(cls, text: str) -> _Record:
        record = cls(decode_value(text), "the document")
        version = record.take("v", int)
        if version != _VERSION:
            raise CorruptRecord(f"the document has version {version}; this release knows version {_VERSION}")
        return record

    def take(self, key: str, kind: type | tuple[type, ...], default: Any = _REQUIRED) -> Any:
        value = self._left.pop(key, _REQUIRED)
        if value is _REQUIRED:
            if default is _REQUIRED:
                raise CorruptRecord(f"{self.what} lacks {key!r}")
            return default
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise CorruptRecord(f"{key!r} of {self.what} has the wrong type, {type(value).__name__}")
        return value

    def instant(self, key: str) -> datetime | None:
        text = self.take(key, str, None)
        return None if text is None else decode_instant(text)

    def record(self, key: str) -> _Record | None:
        value = self.take(key, dict, None)
        return None if value is None else _Record(value, key)

    def records(self, key: str) -> list[_Record]:
        items = self.take(key, list, [])
        return [_Record(item, f"{key}[{index}]") for index, item in enumerate(items)]

    def end(self) -> None:
        if self._left:
            raise CorruptRecord(f"{self.what} has keys unknown to this release: {', '.join(sorted(self._left))}")
