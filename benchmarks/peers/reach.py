"""What the figures should reach, and what they do reach: each goal as a bound on one ratio or one amount."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.peers.contest import CONTESTANTS

Figures = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Medians by workload and engine."""

OURS = "docket"


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """`found` reads the figures; at least or at most `bound`."""

    what: str
    unit: str
    at_most: bool
    bound: float
    found: Callable[[Figures], float | None]

    def reached(self, figures: Figures) -> bool | None:
        """None when a figure that it needs was not taken."""
        value = self.found(figures)
        if value is None:
            return None
        return value <= self.bound if self.at_most else value >= self.bound


def best(figures: Figures, workload: str, kind: str) -> tuple[str, float] | None:
    """The fastest engine of that kind, and its speed."""
    speeds = [
        (row["per_second"], name)
        for name, row in figures.get(workload, {}).items()
        if CONTESTANTS[name].kind == kind and "per_second" in row
    ]
    return (max(speeds)[1], max(speeds)[0]) if speeds else None


def of_kind(workload: str, kind: str, ours: str = OURS) -> Callable[[Figures], float | None]:
    """Our speed over that of the fastest engine of a kind."""

    def found(figures: Figures) -> float | None:
        other, own = best(figures, workload, kind), figures.get(workload, {}).get(ours)
        return None if other is None or own is None else float(own["per_second"]) / other[1]

    return found


def of_engine(workload: str, name: str) -> Callable[[Figures], float | None]:
    """Our speed over that of one engine."""

    def found(figures: Figures) -> float | None:
        rows = figures.get(workload, {})
        return rows[OURS]["per_second"] / rows[name]["per_second"] if OURS in rows and name in rows else None

    return found


def amount(workload: str, *path: str, scale: float = 1.0) -> Callable[[Figures], float | None]:
    """One of our own figures."""

    def found(figures: Figures) -> float | None:
        value: Any = figures.get(workload, {}).get(OURS)
        for key in path:
            value = None if value is None else value[key]
        return None if value is None else float(value) / scale

    return found


def hops(wake: str, share: str) -> Callable[[Figures], float | None]:
    """A wake in units of the median hop."""

    def found(figures: Figures) -> float | None:
        row = figures.get("wake", {}).get("wake")
        return None if row is None else row[wake][share] / row["hop"]["p50"]

    return found


def _least(what: str, bound: float, found: Callable[[Figures], float | None], unit: str = "x") -> Goal:
    return Goal(what=what, unit=unit, at_most=False, bound=bound, found=found)


def _most(what: str, bound: float, found: Callable[[Figures], float | None], unit: str) -> Goal:
    return Goal(what=what, unit=unit, at_most=True, bound=bound, found=found)


GOALS = (
    _least("100-node chain, of the bare statement", 0.5, of_kind("chain100", "floor")),
    _least("100-node chain, of the best durable peer", 1.7, of_kind("chain100", "durable")),
    _least("10-node chains, 32 at a time, of the best durable peer", 2.5,
           of_kind("chains10", "durable", "docket_gevent")),
    _least("10-node chains, one at a time, of the best durable peer", 2.5, of_kind("chains10", "durable")),
    _least("one-node runs, direct refill, 32 at a time, of the best durable peer", 3.5,
           of_kind("drain", "durable", "docket_gevent")),
    _least("one-node runs, direct refill, one at a time, of the best durable peer", 3.5, of_kind("drain", "durable")),
    _least("one-node runs, a message per run, 32 at a time, of the best durable peer", 1.0,
           of_kind("drain", "durable", "docket_broker_gevent")),
    _least("one-node runs, a message per run, one at a time, of the best durable peer", 1.0,
           of_kind("drain", "durable", "docket_broker")),
    _least("fan-out and join, of LangGraph", 3.0, of_engine("fan", "langgraph")),
    _most("append 1 KB x 200, log in all", 0.6, amount("append", "wal_per_run", scale=1e6), "MB"),
    _least("append 1 KB x 200, last 50 of first 50", 0.9, amount("append", "last_over_first")),
    _most("beside 1 MB, log per step", 1.5, amount("beside", "wal_per_step", scale=1e3), "KB"),
    _least("beside 1 MB, of the speed without it", 0.85, amount("beside", "of_plain")),
    _most("100-node chain, log per step with events", 1.5, amount("chain100", "wal_per_step", scale=1e3), "KB"),
    _most("10-node chain, log per step with events", 1.5, amount("beside", "plain", "wal_per_step", scale=1e3), "KB"),
    _most("wake by a start, p50", 2.5, hops("start", "p50"), "hops"),
    _most("wake by a start, p95", 6.0, hops("start", "p95"), "hops"),
    _most("wake by an answer, p50", 2.5, hops("resolve", "p50"), "hops"),
    _most("wake by an answer, p95", 6.0, hops("resolve", "p95"), "hops"),
)  # fmt: skip
"""A hop is the median of plain Celery's `delay()` to the task's body in the same run; KB and MB are thousands."""
