"""A small pure model of the run aggregate: what each operation must answer, and what it must leave behind.

It is written from the contract and shares no code with either store. Tokens are the store's own choice: the model is
told them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

MAX_ATTEMPTS = 3
MAX_ABANDONS = 2
TTL = timedelta(seconds=60)

Then = Literal["retain", "quietly", "immediate", "later", "external", "terminal"]
Entries = list[tuple[datetime, str]]
"""Runs of one class: since when each is eligible, and its id."""


@dataclass(slots=True, kw_only=True)
class ModelRun:
    """The facts of one run that the lease protocol is about."""

    wake_at: datetime | None
    tenant: str | None = None
    status: str = "running"
    seq: int = 1
    token: str | None = None
    claimed_at: datetime | None = None
    redeemed: bool = False
    attempts: int = 0
    abandons: int = 0
    undelivered: int = 0
    poisoned: bool = False
    commit_id: str | None = None

    def unclaim(self) -> None:
        self.token, self.claimed_at, self.redeemed = None, None, False

    def halt(self) -> None:
        self.unclaim()
        self.wake_at, self.poisoned = None, True

    def forget(self) -> None:
        self.attempts, self.abandons, self.undelivered, self.poisoned = 0, 0, 0, False


@dataclass(slots=True)
class Model:
    """All runs, by id. `now` is the clock that the store under test reads."""

    runs: dict[str, ModelRun] = field(default_factory=dict)

    def outcomes(
        self, now: datetime, limit: int, preference: str | None, turns: tuple[float, int | None] | None = None
    ) -> dict[str, str]:
        """What one scan does with whom: run id to `poison`, `again` (leased under its token) or `fresh`.

        `turns`, a fraction and a cap, is for scans in which tenants take turns.
        """
        ready: Entries = []
        expired: Entries = []
        for run_id, run in self.runs.items():
            if run.status != "running" or run.poisoned:
                continue
            if run.wake_at is not None and run.wake_at <= now:
                ready.append((run.wake_at, run_id))
            if run.claimed_at is not None and run.claimed_at < now - TTL:
                expired.append((run.claimed_at + TTL, run_id))
        ready, expired = sorted(ready), sorted(expired)
        if turns is not None:
            ready = self._in_turn(ready, *turns)
            chosen_ready, chosen_expired = _halves(ready, expired, limit, preference)
        else:
            chosen_ready, chosen_expired = _oldest(ready, expired, limit, preference)
        return {run_id: self._fate(self.runs[run_id], "ready") for _, run_id in chosen_ready} | {
            run_id: self._fate(self.runs[run_id], "expired") for _, run_id in chosen_expired
        }

    def _in_turn(self, ready: Entries, fraction: float, cap: int | None) -> Entries:
        """Goes round the tenants, one run at a time, for as long as anybody below the cap has any left."""
        left = sorted(ready, key=lambda entry: (self.runs[entry[1]].seq == 1, entry))
        names = {run.tenant or "" for run in self.runs.values()}
        out = {name: sum(r.token is not None for r in self.runs.values() if (r.tenant or "") == name) for name in names}
        ring = sorted({self.runs[run_id].tenant or "" for _, run_id in ready})
        start = int(fraction * len(ring))
        served: Entries = []
        while True:
            before = len(served)
            for name in ring[start:] + ring[:start]:
                own = [entry for entry in left if (self.runs[entry[1]].tenant or "") == name]
                if own and (cap is None or out[name] < cap):
                    out[name] += 1
                    left.remove(own[0])
                    served.append(own[0])
            if len(served) == before:
                return served

    @staticmethod
    def _fate(run: ModelRun, kind: str) -> str:
        unredeemed = kind == "expired" and not run.redeemed
        if run.attempts >= MAX_ATTEMPTS and not unredeemed:
            return "poison"
        return "again" if unredeemed else "fresh"

    def claimed(self, run_id: str, token: str, now: datetime, *, direct: bool, again: bool) -> None:
        run = self.runs[run_id]
        run.undelivered += again and not direct
        run.token, run.claimed_at, run.wake_at, run.redeemed = token, now, None, direct
        run.attempts += direct

    def redeem(self, run_id: str, seq: int, offered: str, chosen: str, now: datetime) -> bool:
        run = self.runs[run_id]
        if run.token is None or run.token not in (offered, chosen) or run.seq != seq:
            return False
        if run.token != chosen:
            run.attempts += not run.redeemed
            run.token, run.redeemed = chosen, True
            if run.claimed_at is not None and run.claimed_at < now - TTL / 3:
                run.claimed_at = now
        return True

    def commit(
        self, run_id: str, seq: int, token: str, commit_id: str, then: Then, at: datetime, now: datetime
    ) -> bool:
        run = self.runs[run_id]
        if run.commit_id == commit_id and run.seq == seq + 1:
            return True
        if run.token is None or run.token != token or run.seq != seq:
            return False
        if then in ("retain", "quietly"):
            if run.claimed_at is not None and run.claimed_at < now - TTL / 3:
                run.claimed_at = now
            run.seq, run.commit_id = run.seq + 1, commit_id
            run.forget()
            return True
        self.move(run_id, commit_id, then, at, now)
        return True

    def move(self, run_id: str, commit_id: str, then: Then, at: datetime, now: datetime) -> None:
        """A transition that leaves no claim: a releasing commit, or a serialised mutation."""
        run = self.runs[run_id]
        run.seq, run.commit_id = run.seq + 1, commit_id
        run.unclaim()
        run.forget()
        run.status = {"external": "waiting", "terminal": "done"}.get(then, "running")
        run.wake_at = {"immediate": now, "later": at}.get(then)

    def release(self, run_id: str, token: str, wake_at: datetime, *, uncounted: bool) -> None:
        run = self.runs[run_id]
        if run.token is not None and run.token == token:
            if uncounted and run.redeemed:
                run.attempts = max(0, run.attempts - 1)
            run.unclaim()
            run.wake_at = wake_at

    def abandon(self, run_id: str, seq: int, token: str, wake_at: datetime, *, poisoning: bool) -> str:
        run = self.runs[run_id]
        if run.token is None or run.token != token or run.seq != seq:
            return "stale"
        if run.redeemed:
            run.attempts = max(0, run.attempts - 1)
        run.unclaim()
        run.abandons += 1
        if poisoning and run.abandons > MAX_ABANDONS:
            run.halt()
            return "poisoned"
        run.wake_at = wake_at
        return "rescheduled"

    def refresh(self, claims: list[tuple[str, str]], now: datetime) -> set[str]:
        alive = {run_id for run_id, token in claims if self.runs[run_id].token == token}
        for run_id in alive:
            self.runs[run_id].claimed_at = now
        return alive

    def recover(self, run_id: str, now: datetime) -> None:
        run = self.runs[run_id]
        if run.poisoned:
            run.forget()
            run.wake_at = now


def _oldest(ready: Entries, expired: Entries, limit: int, preference: str | None) -> tuple[Entries, Entries]:
    """By age, with a place for each class from two on."""
    heads = ready[:1] + expired[:1]
    if limit == 1:
        preferred = {"ready": ready, "expired": expired}.get(preference or "") or sorted(heads)
        chosen = preferred[:1]
    else:
        chosen = (heads + sorted(entry for entry in ready + expired if entry not in heads))[:limit]
    return [entry for entry in ready if entry in chosen], [entry for entry in expired if entry in chosen]


def _halves(ready: Entries, expired: Entries, limit: int, preference: str | None) -> tuple[Entries, Entries]:
    """One from each class in turn, the ready one first; a single place to the expired one unless told otherwise."""
    if limit == 1:
        first = ready if preference == "ready" or not expired else expired
        second = expired if first is ready else ready
        one = (first or second)[:1]
        return [entry for entry in ready if entry in one], [entry for entry in expired if entry in one]
    taken: tuple[Entries, Entries] = ([], [])
    while len(taken[0]) + len(taken[1]) < limit and (len(taken[0]) < len(ready) or len(taken[1]) < len(expired)):
        for kind, entries in enumerate((ready, expired)):
            if len(taken[kind]) < len(entries) and len(taken[0]) + len(taken[1]) < limit:
                taken[kind].append(entries[len(taken[kind])])
    return taken
