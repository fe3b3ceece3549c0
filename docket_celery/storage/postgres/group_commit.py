"""Group commit: what several threads ask for at the same time is carried out in one go.

Nobody waits for company. Whoever comes first goes alone; who comes meanwhile waits for that, and these go together
next, carried out by the first of them. Where threads are greenlets, so are these. Knows no statement.
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

Request = TypeVar("Request")
Answer = TypeVar("Answer")
Alone: TypeAlias = Callable[[Request], Answer]
Together: TypeAlias = Callable[[Sequence[Request]], Sequence[Answer | None]]

logger = logging.getLogger("docket_celery")

LARGEST: Final = 16
"""Requests that are carried out together at most: what bounds the wait of the first for the work of the others."""


def _closed() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


@dataclass(slots=True, eq=False)
class _Place(Generic[Request, Answer]):
    """One request under way. `turn` opens once: for who is to lead, or when the request has been seen to."""

    request: Request
    turn: threading.Lock = field(default_factory=_closed)
    seen_to: bool = False
    answer: Answer | None = None
    unavailable: StoreUnavailable | None = None


class GroupCommit(Generic[Request, Answer]):
    """Carries out the requests of all threads of this process.

    alone     carries out one: its answer, or the error that it deserves
    together  carries out several: an answer for each, None for one that is to go alone after all

    `StoreUnavailable` from `together` is everybody's. After any other error all go alone: nobody's request fails for
    another's.
    """

    def __init__(self, alone: Alone[Request, Answer], together: Together[Request, Answer]) -> None:
        self._alone = alone
        self._together = together
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._waiting: deque[_Place[Request, Answer]] = deque()
        self._leader: _Place[Request, Answer] | None = None

    def __call__(self, request: Request) -> Answer:
        """The answer to one request, which is carried out once."""
        self._own_process()
        place: _Place[Request, Answer] = _Place(request)
        self._enter(place)
        try:
            place.turn.acquire()
            if not place.seen_to:
                self._lead(place)
        finally:
            self._leave(place)
        if place.unavailable is not None:
            raise StoreUnavailable(str(place.unavailable)) from place.unavailable
        return self._alone(request) if place.answer is None else place.answer

    def _enter(self, place: _Place[Request, Answer]) -> None:
        with self._lock:
            self._waiting.append(place)
            if self._leader is None:
                self._appoint(place)

    def _lead(self, leader: _Place[Request, Answer]) -> None:
        """Sees to the leader's own request and to those that have been waiting with it."""
        with self._lock:
            group = [self._waiting.popleft() for _ in range(min(len(self._waiting), LARGEST))]
        if group == [leader]:
            leader.answer = self._alone(leader.request)
            return
        try:
            answers = self._together([place.request for place in group])
            for place, answer in zip(group, answers, strict=True):
                place.answer = answer
        except StoreUnavailable as error:
            for place in group:
                place.unavailable = error
        except Exception:
            logger.debug("%d commits go one by one", len(group), exc_info=True)
        finally:
            # They go on before the next leader is appointed, so that they are in time for its group.
            for place in group:
                place.seen_to = True
                if place is not leader:
                    place.turn.release()

    def _leave(self, place: _Place[Request, Answer]) -> None:
        """Passes the lead on, if it is with this one; one that was interrupted while it waited is forgotten."""
        if place.seen_to and place is not self._leader:
            return
        with self._lock:
            if place in self._waiting:
                self._waiting.remove(place)
            if place is self._leader:
                self._leader = None
                if self._waiting:
                    self._appoint(self._waiting[0])

    def _appoint(self, place: _Place[Request, Answer]) -> None:
        self._leader = place
        place.turn.release()

    def _own_process(self) -> None:
        """A forked child begins with nobody: threads of its parent are not here to lead."""
        if os.getpid() != self._pid:
            self._reset()
