"""Group commit: what several threads ask for at the same time is carried out in one go.

A request that finds no other one under way is carried out at once, by itself. Those that arrive meanwhile wait for it
and are carried out together next, by the thread of the first of them: their leader. No request waits for others to
arrive. Greenlets take the place of threads where the interpreter is patched. Knows no statement.

Only the cost depends on who leads: there may be two leaders at once, each with requests of its own.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeAlias, TypeVar

from docket_celery.errors import StoreUnavailable
from docket_celery.holds import held

Request = TypeVar("Request")
Answer = TypeVar("Answer")
Alone: TypeAlias = Callable[[Request], Answer]
Together: TypeAlias = Callable[[Sequence[Request]], Sequence[Answer | None]]

logger = logging.getLogger("docket_celery")

LARGEST: Final = 16
"""Requests that are carried out together at most: what bounds the wait of the first for the work of the others."""
PATIENCE: Final = 0.1
"""Seconds after which a leader is not waited for any more: its own request may be held up by the lock of a row, or it
was interrupted at a place where it could not pass the lead on.
"""


def _closed() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


@dataclass(slots=True, eq=False)
class _Place(Generic[Request, Answer]):
    """One request under way. If it has to wait, `turn` opens once: when it is to lead, or when its leader, `led_by`,
    has dealt with it (`seen_to`).
    """

    request: Request
    turn: threading.Lock = field(default_factory=_closed)
    seen_to: bool = False
    answer: Answer | None = None
    unavailable: StoreUnavailable | None = None
    led_by: _Place[Request, Answer] | None = None
    has_left: bool = False


@dataclass(slots=True, eq=False)
class _Queue(Generic[Request, Answer]):
    """Who waits in one process, in order of arrival, and who leads. A leader does not wait."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    waiting: deque[_Place[Request, Answer]] = field(default_factory=deque)
    leader: _Place[Request, Answer] | None = None

    def enter(self, place: _Place[Request, Answer]) -> bool:
        """Whether nobody else is here, so that this one leads at once."""
        with self.lock:
            if self.leader is None:
                self.leader = place
                return True
            self.waiting.append(place)
            return False

    def overtake(self, place: _Place[Request, Answer]) -> bool:
        """Whether a request that has waited too long is to go on by itself: as a leader, if it still stands in the
        queue, or because its leader has left without dealing with it. False while its leader is at work.
        """
        with self.lock:
            if place in self.waiting:
                self.leader = place
                self.waiting.remove(place)
            return self.leader is place or (place.led_by is not None and place.led_by.has_left)

    def join(self, group: list[_Place[Request, Answer]]) -> None:
        """Adds the requests that wait to a group, which holds its leader so far."""
        with self.lock:
            while self.waiting and len(group) < LARGEST:
                self.waiting[0].led_by = group[0]
                group.append(self.waiting.popleft())

    def leave(self, place: _Place[Request, Answer]) -> None:
        """Appoints the next leader, if this was the one. A request that was interrupted in its wait is forgotten."""
        with self.lock:
            place.has_left = True
            if place in self.waiting:
                self.waiting.remove(place)
            if place is self.leader:
                self.leader = None
                if self.waiting:
                    self._appoint(self.waiting.popleft())

    def _appoint(self, place: _Place[Request, Answer]) -> None:
        self.leader = place
        place.turn.release()


class GroupCommit(Generic[Request, Answer]):
    """Carries out the requests of all threads of this process.

    alone     carries out one: returns its answer or raises its error
    together  carries out several: an answer for each, None for one that is to go alone after all
    patience  seconds that a request waits for a leader before it leads itself

    `StoreUnavailable` from `together` is everybody's. After any other error all go alone: nobody's request fails for
    another's.
    """

    def __init__(
        self, alone: Alone[Request, Answer], together: Together[Request, Answer], *, patience: float = PATIENCE
    ) -> None:
        self._alone = alone
        self._together = together
        self._patience = patience
        self._queues: dict[int, _Queue[Request, Answer]] = {}

    def __call__(self, request: Request) -> Answer:
        """The answer to one request, which is carried out once."""
        queue = self._queue()
        place: _Place[Request, Answer] = _Place(request)
        with held():  # No longer than a statement is.
            try:
                if queue.enter(place):
                    return self._alone(request)
                while not (place.turn.acquire(timeout=self._patience) or queue.overtake(place)):
                    pass
                if not place.seen_to:
                    self._lead(queue, place)
            finally:
                queue.leave(place)
            if place.unavailable is not None:
                raise StoreUnavailable(str(place.unavailable)) from place.unavailable
            return self._alone(request) if place.answer is None else place.answer

    def _lead(self, queue: _Queue[Request, Answer], leader: _Place[Request, Answer]) -> None:
        """Sees to the leader's own request and to those that have been waiting with it."""
        group = [leader]
        try:
            queue.join(group)
            if len(group) == 1:
                leader.answer = self._alone(leader.request)
            else:
                self._carry_out(group)
        finally:
            # They go on before the next leader is appointed, so that they are in time for its group.
            for place in group[1:]:
                place.seen_to = True
                place.turn.release()
            leader.seen_to = True

    def _carry_out(self, group: Sequence[_Place[Request, Answer]]) -> None:
        try:
            answers = self._together([place.request for place in group])
            for place, answer in zip(group, answers, strict=True):
                place.answer = answer
        except StoreUnavailable as error:
            for place in group:
                place.unavailable = error
        except Exception:
            logger.debug("%d requests go one by one", len(group), exc_info=True)

    def _queue(self) -> _Queue[Request, Answer]:
        """This process's own: in a forked child the threads of its parent are not there to lead."""
        process = os.getpid()
        queue = self._queues.get(process)
        # No lock: one that another thread held at a fork would stay held in the child for ever.
        return self._queues.setdefault(process, _Queue()) if queue is None else queue
