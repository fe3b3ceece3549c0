"""A store with its clock, and the few moves that most conformance cases are made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from support.builders import ORDER, TTL, a_commit, a_decision, a_run, a_scan, an_abandon, an_initial, new_commit_id

from docket_celery.run.document import Run
from docket_celery.run.views import RunInfo
from docket_celery.storage.contracts.claims import ClaimBatch, Lease
from docket_celery.storage.contracts.run_store import RunStore
from docket_celery.storage.contracts.values import (
    SYSTEM,
    TENANTLESS,
    GraphRef,
    Release,
    Retain,
    Scope,
    Started,
    Storage,
)
from docket_celery.testing import ManualClock, SequentialIds

RETAIN = Retain(ttl=TTL)
QUIETLY = Retain(ttl=TTL, quiet=True)


@dataclass(slots=True)
class Scene:
    """`storage` bound to the manual `clock`. Graph versions are published on the way, where a run needs one."""

    storage: Storage
    clock: ManualClock
    ids: SequentialIds = field(default_factory=SequentialIds)

    @property
    def runs(self) -> RunStore:
        return self.storage.runs

    @property
    def now(self) -> datetime:
        return self.clock.now()

    def publish(self, scope: Scope = TENANTLESS, ref: GraphRef = ORDER) -> None:
        self.storage.graphs.save_graph(scope, ref, {"id": ref.graph_id})

    def start(
        self,
        run_id: str = "run-1",
        *,
        tenant: str | None = None,
        ref: GraphRef = ORDER,
        schedule: Release | None = None,
        start_key: str | None = None,
        input_digest: str | None = None,
        **parts: Any,
    ) -> Started:
        scope = Scope.of(tenant)
        self.publish(scope, ref)
        run = a_run(run_id, at=self.now, ref=ref, **parts)
        initial = an_initial(run, schedule=schedule, start_key=start_key, input_digest=input_digest)
        return self.runs.insert_run(scope, initial)

    def scan(self, **parts: Any) -> ClaimBatch:
        return self.runs.claim_due(a_scan(**parts))

    def lease(self, **parts: Any) -> Lease:
        """The one lease that a scan hands out."""
        (lease,) = self.scan(**parts).leases
        return lease

    def redeem(self, lease: Lease, token: str | None = None) -> str:
        """Redeems the lease, and returns the private token."""
        token = token or self.ids.token()
        return self.runs.redeem_claim(lease, token=token).claim_token

    def hold(self, **parts: Any) -> str:
        """Claims the one due run and redeems it; returns the private token."""
        return self.redeem(self.lease(**parts))

    def commit(self, run_id: str, token: str, **parts: Any) -> Run:
        """Commits the next transition of the run under `token`; returns the run as proposed."""
        proposal = a_commit(self.run(run_id), token, at=self.now, **parts)
        self.runs.commit(SYSTEM, proposal)
        return proposal.run

    def mutate(self, run_id: str, **parts: Any) -> Run:
        """Commits the next transition of the run as a serialised mutation."""
        decide = lambda run, now: a_decision(run, at=now, **parts)  # noqa: E731
        return self.runs.mutate_run(SYSTEM, run_id, decide, commit_id=new_commit_id()).run

    def abandon(self, run_id: str, token: str, **parts: Any) -> str:
        return self.runs.abandon_claim(run_id, token, an_abandon(**parts))

    def run(self, run_id: str = "run-1") -> Run:
        return self.runs.fetch_run(SYSTEM, run_id)

    def info(self, run_id: str = "run-1") -> RunInfo:
        return self.runs.inspect_run(SYSTEM, run_id)

    def expire(self) -> None:
        """Lets every claim that now holds run out."""
        self.clock.advance(TTL + timedelta(microseconds=1))

    def poison(self, run_id: str = "run-1") -> None:
        """Uses up the run's attempts, until a scan halts it."""
        for _ in range(3):
            self.hold()
            self.expire()
        (halted,) = self.scan().poisoned
        assert halted.run_id == run_id
