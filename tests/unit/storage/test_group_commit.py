"""Group commit: who goes alone, who goes together, and that nobody is left hanging, whoever fails or is interrupted."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.clock import eventually

from docket_celery.errors import StaleFence, StoreUnavailable
from docket_celery.holds import is_held
from docket_celery.storage.postgres import group_commit
from docket_celery.storage.postgres.group_commit import LARGEST, GroupCommit

TESTS = Path(__file__).parents[2]
LONG = 60.0
"""Seconds of patience that no test uses up."""


class Ended(BaseException):
    """Something from outside, such as the end of a greenlet."""


@dataclass
class Counter:
    """Carries out requests, on demand slowly, and notes each call. The answer to `x` is `x done`."""

    calls: list[tuple[str, ...]] = field(default_factory=list)
    held_back: dict[str, threading.Event] = field(default_factory=dict)
    errors: dict[str, BaseException] = field(default_factory=dict)
    of_groups: list[BaseException] = field(default_factory=list)
    passed_over: set[str] = field(default_factory=set)
    threads: list[threading.Thread] = field(default_factory=list)
    patience: float = LONG

    def __post_init__(self) -> None:
        self.group: GroupCommit[str, str] = GroupCommit(self.alone, self.together, patience=self.patience)

    def alone(self, request: str) -> str:
        self.calls.append((request,))
        self._wait_for([request])
        if request in self.errors:
            raise self.errors[request]
        return f"{request} done"

    def together(self, requests: Sequence[str]) -> list[str | None]:
        assert len(requests) > 1
        self.calls.append(tuple(requests))
        self._wait_for(requests)
        if self.of_groups:
            raise self.of_groups.pop(0)
        return [None if request in self.passed_over else f"{request} done" for request in requests]

    def _wait_for(self, requests: Sequence[str]) -> None:
        for event in [self.held_back[request] for request in requests if request in self.held_back]:
            assert event.wait(LONG)

    def hold_back(self, request: str) -> threading.Event:
        """Whoever carries it out waits for this."""
        return self.held_back.setdefault(request, threading.Event())

    def begin(self, request: str) -> Future[str]:
        """Asks in a thread of its own."""
        future: Future[str] = Future()

        def ask() -> None:
            try:
                future.set_result(self.group(request))
            except BaseException as error:
                future.set_exception(error)

        thread = threading.Thread(target=ask, name=request, daemon=True)
        self.threads.append(thread)
        thread.start()
        return future

    def lead(self, request: str) -> tuple[Future[str], threading.Event]:
        """Asks first, and is carried out until the event is set."""
        event = self.hold_back(request)
        future = self.begin(request)
        eventually(lambda: self.calls and self.calls[-1][0] == request)
        return future, event

    def queue_up(self, *requests: str) -> list[Future[str]]:
        """Asks for each, one after the other, while somebody leads."""
        futures = []
        for request in requests:
            before = self.waiting
            futures.append(self.begin(request))
            eventually(lambda before=before: self.waiting == before + 1)  # type: ignore[misc]
        return futures

    @property
    def waiting(self) -> int:
        return len(self.group._queue().waiting)


@pytest.fixture
def counter() -> Iterator[Counter]:
    counter = Counter()
    yield counter
    for event in counter.held_back.values():
        event.set()
    for thread in counter.threads:
        thread.join(LONG)
    assert not [thread.name for thread in counter.threads if thread.is_alive()]
    queue = counter.group._queue()
    assert (queue.leader, list(queue.waiting)) == (None, [])
    assert counter.group("afterwards") == "afterwards done"


def results(futures: Sequence[Future[str]]) -> list[str]:
    return [future.result(LONG) for future in futures]


# -- who goes with whom -----------------------------------------------------------------------------------------------


def test_who_comes_alone_goes_alone_and_waits_for_nobody(counter: Counter) -> None:
    assert [counter.group(request) for request in "abc"] == ["a done", "b done", "c done"]
    assert counter.calls == [("a",), ("b",), ("c",)]


def test_those_who_come_while_the_first_is_under_way_go_together_in_the_order_of_their_arrival(
    counter: Counter,
) -> None:
    first, go_on = counter.lead("first")
    others = counter.queue_up("c", "a", "b")
    go_on.set()
    assert results([first, *others]) == ["first done", "c done", "a done", "b done"]
    assert counter.calls == [("first",), ("c", "a", "b")]


def test_those_who_come_while_a_group_is_under_way_are_the_next_group(counter: Counter) -> None:
    first, go_on = counter.lead("first")
    one = counter.queue_up("a", "b")
    second_group = counter.hold_back("a")
    go_on.set()
    eventually(lambda: len(counter.calls) == 2)
    other = counter.queue_up("c", "d")
    second_group.set()
    assert results([first, *one, *other]) == [f"{name} done" for name in ("first", "a", "b", "c", "d")]
    assert counter.calls == [("first",), ("a", "b"), ("c", "d")]


def test_no_group_is_larger_than_the_largest(counter: Counter) -> None:
    first, go_on = counter.lead("first")
    names = [f"{number}" for number in range(2 * LARGEST + 1)]
    others = counter.queue_up(*names)
    go_on.set()
    assert results([first, *others]) == ["first done", *(f"{name} done" for name in names)]
    assert counter.calls == [
        ("first",), tuple(names[:LARGEST]), tuple(names[LARGEST : 2 * LARGEST]), (names[-1],)
    ]  # fmt: skip


def test_of_many_requests_each_is_carried_out_once_and_gets_its_own_answer(counter: Counter) -> None:
    requests = [[f"{thread}/{number}" for number in range(50)] for thread in range(12)]
    together = threading.Barrier(12)
    answers: dict[str, str] = {}

    def ask(mine: list[str]) -> None:
        together.wait(LONG)
        for request in mine:
            answers[request] = counter.group(request)

    counter.threads += [threading.Thread(target=ask, args=(mine,)) for mine in requests]
    for thread in counter.threads:
        thread.start()
    for thread in counter.threads:
        thread.join(LONG)
    names = sorted(name for mine in requests for name in mine)
    assert answers == {name: f"{name} done" for name in names}
    assert sorted(name for call in counter.calls for name in call) == names
    assert max(map(len, counter.calls)) <= LARGEST


def test_who_is_not_served_by_its_group_goes_alone_beside_the_next_group(counter: Counter) -> None:
    first, go_on = counter.lead("first")
    counter.passed_over = {"b"}
    group = counter.hold_back("a")
    a, b = counter.queue_up("a", "b")
    go_on.set()
    eventually(lambda: ("a", "b") in counter.calls)
    c, d = counter.queue_up("c", "d")
    alone = counter.hold_back("b")
    counter.held_back["a"] = threading.Event()
    group.set()
    assert results([first, a, c, d]) == ["first done", "a done", "c done", "d done"]
    assert not b.done()
    alone.set()
    assert b.result(LONG) == "b done"
    assert sorted(counter.calls[2:]) == [("b",), ("c", "d")]


def test_a_leader_that_is_not_served_by_its_group_goes_alone_without_the_lead(counter: Counter) -> None:
    first, go_on = counter.lead("first")
    counter.passed_over = {"a"}
    a, b = counter.queue_up("a", "b")
    go_on.set()
    assert b.result(LONG) == "b done"
    assert results([first, a]) == ["first done", "a done"]
    assert counter.calls == [("first",), ("a", "b"), ("a",)]


# -- failures ---------------------------------------------------------------------------------------------------------


def test_an_unreachable_store_is_told_to_each_of_the_group_by_an_error_of_its_own(counter: Counter) -> None:
    first, go_on = counter.lead("first")
    away = StoreUnavailable("the database is away")
    counter.of_groups = [away]
    group = counter.queue_up("a", "b", "c")
    go_on.set()
    errors = [future.exception(LONG) for future in group]
    assert [(type(error), str(error)) for error in errors] == [(StoreUnavailable, "the database is away")] * 3
    assert len({id(error) for error in [away, *errors]}) == 4
    assert {error.__cause__ for error in errors if error is not None} == {away}
    assert results([first]) == ["first done"]
    assert counter.calls == [("first",), ("a", "b", "c")]


@pytest.mark.parametrize("error", [ValueError("a value"), StaleFence("stale"), RecursionError()], ids=repr)
def test_after_any_other_failure_all_go_alone_and_only_the_guilty_one_fails(counter: Counter, error: Exception) -> None:
    first, go_on = counter.lead("first")
    counter.of_groups = [error]
    own = KeyError("its own")
    counter.errors = {"b": own}
    a, b, c = counter.queue_up("a", "b", "c")
    go_on.set()
    assert results([first, a, c]) == ["first done", "a done", "c done"]
    assert b.exception(LONG) is own
    assert sorted(counter.calls[2:]) == [("a",), ("b",), ("c",)]


def test_too_few_answers_are_nobodys(counter: Counter) -> None:
    first, go_on = counter.lead("first")
    counter.together = lambda requests: ["one"]  # type: ignore[method-assign]
    counter.group._together = counter.together
    a, b = counter.queue_up("a", "b")
    go_on.set()
    assert [first.result(LONG), b.result(LONG)] == ["first done", "b done"]
    assert a.result(LONG) in ("one", "a done")


@pytest.mark.parametrize(
    "error", [StaleFence("stale"), StoreUnavailable("away"), Ended(), KeyboardInterrupt()], ids=repr
)
def test_a_first_one_that_fails_passes_the_lead_on(counter: Counter, error: BaseException) -> None:
    counter.errors = {"first": error}
    first, go_on = counter.lead("first")
    others = counter.queue_up("a", "b")
    go_on.set()
    assert first.exception(LONG) is error
    assert results(others) == ["a done", "b done"]
    assert counter.calls == [("first",), ("a", "b")]


@pytest.mark.parametrize("error", [Ended(), KeyboardInterrupt(), SystemExit()], ids=repr)
def test_when_the_leader_of_a_group_is_interrupted_the_others_go_alone(counter: Counter, error: BaseException) -> None:
    first, go_on = counter.lead("first")
    counter.of_groups = [error]
    group = counter.hold_back("a")
    a, b, c = counter.queue_up("a", "b", "c")
    go_on.set()
    eventually(lambda: len(counter.calls) == 2)
    later = counter.queue_up("d", "e")
    group.set()
    assert a.exception(LONG) is error
    assert results([first, b, c, *later]) == ["first done", "b done", "c done", "d done", "e done"]
    assert sorted(counter.calls[2:]) == [("b",), ("c",), ("d", "e")]


# -- interruptions while one waits ------------------------------------------------------------------------------------


class Turn:
    """The lock of a place, whose holder is interrupted while it waits, when told to, or when its turn has come."""

    def __init__(self, *, in_time: bool) -> None:
        self._real = threading.Lock()
        self._real.acquire()
        self._in_time = in_time
        self.interrupted = threading.Event()

    def acquire(self, timeout: float = -1) -> bool:
        if self._in_time:
            assert self.interrupted.wait(LONG)
        else:
            assert self._real.acquire(timeout=LONG)
        raise Ended

    def release(self) -> None:
        self._real.release()


def interruptible(counter: Counter, monkeypatch: pytest.MonkeyPatch, *, in_time: bool) -> tuple[Future[str], Turn]:
    """Asks for `x`, the next to wait."""
    turn = Turn(in_time=in_time)
    place = group_commit._Place
    with monkeypatch.context() as patched:
        patched.setattr(group_commit, "_Place", lambda request: place(request, turn))  # type: ignore[arg-type]
        (future,) = counter.queue_up("x")
    return future, turn


def test_one_that_is_interrupted_while_it_waits_is_forgotten(counter: Counter, monkeypatch: pytest.MonkeyPatch) -> None:
    first, go_on = counter.lead("first")
    (a,) = counter.queue_up("a")
    x, turn = interruptible(counter, monkeypatch, in_time=True)
    (b,) = counter.queue_up("b")
    turn.interrupted.set()
    assert isinstance(x.exception(LONG), Ended)
    go_on.set()
    assert results([first, a, b]) == ["first done", "a done", "b done"]
    assert counter.calls == [("first",), ("a", "b")]


def test_one_that_is_interrupted_when_it_was_to_lead_passes_the_lead_on(
    counter: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, go_on = counter.lead("first")
    x, _ = interruptible(counter, monkeypatch, in_time=False)
    a, b = counter.queue_up("a", "b")
    go_on.set()
    assert isinstance(x.exception(LONG), Ended)
    assert results([first, a, b]) == ["first done", "a done", "b done"]
    assert counter.calls == [("first",), ("a", "b")]


def test_one_that_is_interrupted_while_its_group_is_under_way_disturbs_nobody(
    counter: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, go_on = counter.lead("first")
    (a,) = counter.queue_up("a")
    x, turn = interruptible(counter, monkeypatch, in_time=True)
    group = counter.hold_back("a")
    go_on.set()
    eventually(lambda: ("a", "x") in counter.calls)
    turn.interrupted.set()
    assert isinstance(x.exception(LONG), Ended)
    later = counter.queue_up("b", "c")
    group.set()
    assert results([first, a, *later]) == ["first done", "a done", "b done", "c done"]
    assert counter.calls == [("first",), ("a", "x"), ("b", "c")]


def test_a_nodes_deadline_interrupts_nobody_here() -> None:
    group = GroupCommit[str, bool](lambda _: is_held(), lambda requests: [None for _ in requests])
    assert (group("a"), is_held()) == (True, False)


# -- leaders that do not come back ------------------------------------------------------------------------------------


def test_a_leader_that_is_held_up_is_waited_for_only_so_long() -> None:
    counter = Counter(patience=0.01)
    first, go_on = counter.lead("first")
    a = counter.begin("a")
    assert a.result(LONG) == "a done"
    group = [counter.begin(name) for name in "bcd"]
    assert results(group) == ["b done", "c done", "d done"]
    assert not first.done()
    go_on.set()
    assert first.result(LONG) == "first done"
    assert sorted(name for call in counter.calls for name in call) == ["a", "b", "c", "d", "first"]


def test_a_group_that_is_held_up_delays_only_those_who_are_in_it() -> None:
    counter = Counter(patience=0.01)
    counter.group._patience = LONG
    first, go_on = counter.lead("first")
    group = counter.hold_back("a")
    a, b = counter.queue_up("a", "b")
    go_on.set()
    eventually(lambda: ("a", "b") in counter.calls)
    counter.group._patience = 0.01
    assert counter.begin("c").result(LONG) == "c done"
    assert (a.done(), b.done()) == (False, False)
    group.set()
    assert results([first, a, b]) == ["first done", "a done", "b done"]
    assert counter.calls == [("first",), ("a", "b"), ("c",)]


def test_a_leader_that_vanished_is_replaced() -> None:
    counter = Counter(patience=0.01)
    queue = counter.group._queue()
    queue.leader = object()  # type: ignore[assignment]
    assert counter.group("a") == "a done"
    assert queue.leader is None
    counter.group._patience = LONG
    assert counter.group("b") == "b done"


def test_one_whose_leader_has_left_without_telling_it_waits_no_longer(counter: Counter) -> None:
    queue = counter.group._queue()
    leader, member = (group_commit._Place[str, str](name) for name in ("leader", "member"))
    queue.enter(leader)
    queue.enter(member)
    group = [leader]
    queue.join(group)
    assert group == [leader, member]
    assert not queue.overtake(member)
    queue.leave(leader)
    assert queue.overtake(member)


# -- forks and greenlets ----------------------------------------------------------------------------------------------


def test_a_child_that_was_forked_while_others_lead_and_wait_begins_with_nobody() -> None:
    _sound(FORKED)


def test_among_greenlets_groups_are_the_same_and_one_that_is_killed_leaves_nobody_hanging() -> None:
    _sound(GREEN)


def _sound(script: str) -> None:
    ran = subprocess.run([sys.executable, "-c", script], cwd=TESTS, capture_output=True, text=True, timeout=60)
    assert ran.stdout == "sound\n", ran.stderr


FORKED = """
import os, signal, threading
from support.clock import eventually
from docket_celery.storage.postgres import group_commit
from docket_celery.storage.postgres.group_commit import GroupCommit

begun, go_on = threading.Event(), threading.Event()

def alone(request):
    if request == "first":
        begun.set()
        go_on.wait(30)
    return request

group = GroupCommit(alone, lambda requests: list(requests), patience=30)
threads = [threading.Thread(target=group, args=(name,)) for name in ("first", "second")]
threads[0].start()
begun.wait(30)
threads[1].start()
eventually(lambda: len(group._queue().waiting) == 1)
with group._queue().lock:
    child = os.fork()
if child == 0:
    signal.alarm(20)  # One that hangs must not stay.
    answers = []
    threads = [threading.Thread(target=lambda n=n: answers.append(group(n))) for n in range(8)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    os._exit(0 if sorted(answers) == list(range(8)) else 1)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
go_on.set()
for thread in threads: thread.join(30)
assert group("third") == "third"
print("sound")
"""

GREEN = """
from gevent import monkey; monkey.patch_all()
import gevent
from gevent.event import Event
from docket_celery.storage.postgres import group_commit
from docket_celery.storage.postgres.group_commit import GroupCommit

calls, gates = [], {}

def wait(requests):
    for request in requests:
        if request in gates:
            gates[request].wait()

def alone(request):
    calls.append((request,))
    wait([request])
    return request

def together(requests):
    calls.append(tuple(requests))
    wait(requests)
    return list(requests)

group = GroupCommit(alone, together, patience=30)

def begin(*requests):
    greenlets = [gevent.spawn(group, request) for request in requests]
    gevent.sleep(0)
    return greenlets

def hold(request):
    gates[request] = Event()
    return gates[request]

with gevent.Timeout(20):
    gate = hold("first")
    (first,) = begin("first")
    waiting = begin("a", "killed", "b")
    waiting[1].kill()
    gate.set()
    gevent.joinall([first, *waiting], raise_error=True)
    assert calls == [("first",), ("a", "b")], calls
    assert [g.value for g in (first, waiting[0], waiting[2])] == ["first", "a", "b"]

    calls.clear()
    gate = hold("first")
    (first,) = begin("first")
    leading, a, b = begin("leading", "a", "b")
    gate.set()
    while group._queue().leader is None or group._queue().leader.request != "leading":
        gevent.sleep(0)
    leading.kill()  # It may have begun to lead by now, or not.
    gevent.joinall([first, a, b], raise_error=True)
    assert (a.value, b.value) == ("a", "b")

    calls.clear()
    gate, under_way = hold("first"), hold("leading")
    (first,) = begin("first")
    leading, a, b = begin("leading", "a", "b")
    gate.set()
    while len(calls) < 2:
        gevent.sleep(0)
    (later,) = begin("later")
    a.kill()
    leading.kill()
    gevent.joinall([first, b, later], raise_error=True)
    assert calls[:2] == [("first",), ("leading", "a", "b")] and sorted(calls[2:]) == [("b",), ("later",)], calls

    gates.clear()
    answers = [gevent.spawn(group, number) for number in range(200)]
    gevent.joinall(answers, raise_error=True)
    assert [g.value for g in answers] == list(range(200))
    queue = group._queue()
    assert queue.leader is None and not queue.waiting
print("sound")
"""
