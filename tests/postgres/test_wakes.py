"""What a wake asks of PostgreSQL: exchanges on the wire, from the nudge or the verb to the node that it is for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from psycopg.conninfo import conninfo_to_dict
from support.rig import Rig

from benchmarks.exchanges import Exchanges, counted
from docket_celery import FINISH, START, Graph, Interrupt
from docket_celery.dispatcher import Dispatcher
from docket_celery.shift import Shift
from docket_celery.storage.postgres import open_storage
from docket_celery.testing import ManualClock


class Wakes:
    """A fleet of one slot behind a counting proxy. Its graph asks a question, and goes on with the answer."""

    def __init__(self, url: str, proxy: Exchanges, clock: ManualClock) -> None:
        self.proxy = proxy
        self.rig = Rig(storage=open_storage(url, now=clock.now), clock=clock, max_in_flight=10)
        self.shift = Shift(self.rig.engine, Dispatcher(self.rig.engine, len))
        self.began: list[int] = []
        self.graph = (
            Graph("wakes")
            .field("answer", int)
            .node("ask", lambda answer=None: self._asks(answer))
            .node("next", lambda: self._begins())
            .edge(START, "ask")
            .edge("ask", "next")
            .edge("next", FINISH)
        )

    def _begins(self) -> None:
        self.began.append(self.proxy.count)

    def _asks(self, answer: int | None) -> Interrupt | None:
        if answer is not None:
            return None
        self._begins()
        return Interrupt("answer", schema=int)

    def nudge(self) -> int:
        """Exchanges between a nudge and the first node that follows."""
        self.began.clear()
        before = self.proxy.count
        self.shift.answer()
        return self.began[0] - before

    def answer(self) -> int:
        """Exchanges that an answer takes until it is durable."""
        run = self.rig.start(self.graph)
        self.nudge()
        (question,) = self.rig.run(run.id).interrupts
        return self.proxy.of(lambda: self.rig.verbs.resolve_interrupt(run.id, question.id, 1))


@pytest.fixture
def wakes(postgres_url: str, clock: ManualClock) -> Iterator[Wakes]:
    port = conninfo_to_dict(postgres_url)["port"]
    with counted(int(str(port))) as proxy:
        yield Wakes(postgres_url.replace(f":{port}/", f":{proxy.port}/"), proxy, clock)


# Each is done twice: at its first use a statement is prepared, which is an exchange of its own.


def test_the_first_node_of_a_run_begins_one_exchange_after_its_nudge(wakes: Wakes) -> None:
    for _ in range(2):
        wakes.rig.start(wakes.graph)
        exchanges = wakes.nudge()
    assert exchanges == 1


def test_with_several_due_runs_the_first_node_begins_three_exchanges_after_a_nudge(wakes: Wakes) -> None:
    for _ in range(2):
        for _ in range(3):
            wakes.rig.start(wakes.graph)
        exchanges = wakes.nudge()
    assert exchanges == 3


def test_an_answer_is_durable_after_two_exchanges(wakes: Wakes) -> None:
    for _ in range(2):
        exchanges = wakes.answer()
        wakes.nudge()
    assert exchanges == 2


def test_the_next_node_begins_after_the_commit_of_the_one_that_had_asked(wakes: Wakes) -> None:
    for _ in range(2):
        wakes.answer()
        exchanges = wakes.nudge()
    assert exchanges == 2
