"""LangGraph with `AsyncPostgresSaver` and `durability="sync"`: every superstep is checkpointed before the next begins.

In one process, one connection as `from_conn_string` makes it. With two, each process has a pool and several threads of
conversation under way at a time. LangGraph has no queue: each process is handed its share of the threads.
"""

from __future__ import annotations

import asyncio
import operator
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.graph import END, START, StateGraph
from psycopg import AsyncConnection
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from benchmarks.peers.engine import Engine, main
from benchmarks.peers.workloads import APPENDED, BRANCHES

AT_A_TIME = 4
"""Threads under way in each of two processes, and its connections: more made it no faster."""
_CONNECTION: dict[str, Any] = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}


class State(TypedDict, total=False):
    """Small values lie in the checkpoint itself; lists and the megabyte in rows of their own, by version."""

    n: int
    parts: Annotated[list[int], operator.add]
    log: Annotated[list[str], operator.add]
    total: int
    field: list[str]


class LangGraphEngine(Engine):
    """A run is a thread, begun by an update of its state."""

    name = "langgraph"

    def prepare(self) -> None:
        self._runner = asyncio.Runner()
        self._runner.run(self._open(1))
        self._runner.run(self._saver.setup())

    async def _open(self, connections: int) -> None:
        if connections == 1:
            self._connection: Any = await AsyncConnection.connect(self.database, **_CONNECTION)
        else:
            self._connection = AsyncConnectionPool(
                self.database, min_size=connections, max_size=connections, open=False, kwargs=_CONNECTION
            )
            await self._connection.open(wait=True)
        self._saver = AsyncPostgresSaver(self._connection)
        self._graph = self._build().compile(checkpointer=self._saver)

    def _build(self) -> StateGraph:
        graph = StateGraph(State)
        length = self.workload.length
        if self.workload.shape == "append":
            graph.add_node("append", self._append)
            graph.add_edge(START, "append")
            graph.add_conditional_edges("append", lambda state: "append" if len(state["log"]) < length else END)
            return graph
        names = [f"n{step:03}" for step in range(length)]
        for step, name in enumerate(names):
            graph.add_node(name, self._body(step))
        if self.workload.shape == "fan":
            graph.add_node("join", self._join)
            for name in names:
                graph.add_edge(START, name)
            graph.add_edge(names, "join")
            graph.add_edge("join", END)
            return graph
        for source, target in zip([START, *names], [*names, END], strict=True):
            graph.add_edge(source, target)
        return graph

    def _body(self, step: int) -> Any:
        gives: dict[str, Any] = {"parts": [step]} if self.workload.shape == "fan" else {}

        async def body(state: State) -> dict[str, Any]:
            self.tally.note(state["n"], step)
            return gives

        return body

    async def _join(self, state: State) -> dict[str, Any]:
        self.tally.note(state["n"], BRANCHES)
        return {"total": sum(state["parts"])}

    async def _append(self, state: State) -> dict[str, Any]:
        self.tally.note(state["n"], len(state["log"]))
        return {"log": [APPENDED]}

    def start(self, runs: range, field: str | None) -> None:
        async def begin() -> None:
            for n in runs:
                state = {"n": n} if field is None else {"n": n, "field": [field]}
                await self._graph.aupdate_state(_config(n), state, as_node=START)

        self._runner.run(begin())

    def work(self, runs: range) -> None:
        async def carry_on() -> None:
            for n in runs:
                await self._carry_on(n)

        self._runner.run(carry_on())

    async def _carry_on(self, n: int) -> None:
        config = {**_config(n), "recursion_limit": self.workload.steps + 10}
        await self._graph.ainvoke(None, config, durability="sync")

    def serve(self, index: int) -> None:
        async def carry_on() -> None:
            await self._open(AT_A_TIME)
            self.go()
            numbers = iter(range(index, self.workload.runs, self.workload.workers))

            async def take() -> None:
                for n in numbers:
                    await self._carry_on(n)

            await asyncio.gather(*(take() for _ in range(AT_A_TIME)))
            await asyncio.Event().wait()

        asyncio.run(carry_on())

    def finished(self) -> int:
        async def count() -> int:
            cursor = await self._connection.execute(
                "SELECT count(*) AS n FROM checkpoints WHERE metadata->>'step' = %s", [str(self._last_step())]
            )
            return int((await cursor.fetchone())["n"])

        return self._runner.run(count())

    def _last_step(self) -> int:
        return 2 if self.workload.shape == "fan" else self.workload.length

    def check(self, runs: range) -> None:
        async def look() -> None:
            for n in runs:
                state = await self._graph.aget_state(_config(n))
                assert state.next == (), state
                if self.workload.shape == "fan":
                    assert state.values["total"] == sum(range(BRANCHES)), state
                elif self.workload.shape == "append":
                    assert state.values["log"] == [APPENDED] * self.workload.length

        self._runner.run(look())

    def close(self) -> None:
        self._runner.run(self._connection.close())
        self._runner.close()


def _config(n: int) -> dict[str, Any]:
    return {"configurable": {"thread_id": str(n)}}


if __name__ == "__main__":
    main(LangGraphEngine)
