"""Claims in memory: handing them out, redeeming, keeping alive, giving back. Never touches a run's document."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from msgspec.structs import replace

from docket_celery.errors import ClaimLost, StaleFence
from docket_celery.run.copies import copy_run
from docket_celery.run.document import JsonValue
from docket_celery.run.values import fresh
from docket_celery.storage.contracts.claims import (
    AbandonDisposition,
    AbandonPolicy,
    Backoff,
    ClaimBatch,
    ClaimPolicy,
    Lease,
    PoisonedClaim,
    Redeemed,
)
from docket_celery.storage.contracts.rules import MAX_ABANDONS_REASON, MAX_ATTEMPTS_REASON
from docket_celery.storage.contracts.taking import Taken, TakeRequest, take_in_two
from docket_celery.storage.memory.candidates import Candidate, candidates, choose, free_slots, gate_is_shut, next_wake
from docket_celery.storage.memory.state import State, StoredRun, later
from docket_celery.storage.memory.turns import choose_in_turn


class MemoryClaims:
    """The claim operations of `RunStore`."""

    def __init__(self, state: State) -> None:
        self._state = state

    def claim_due(self, policy: ClaimPolicy) -> ClaimBatch:
        with self._state.lock:
            return self._claim(policy)

    def _claim(self, policy: ClaimPolicy, token: str | None = None) -> ClaimBatch:
        """One scan, under the lock. `token` is for a claim that has none yet; None makes one."""
        now = policy.now or self._state.clock.now()
        limit = policy.limit
        if policy.demand is not None:
            if gate_is_shut(self._state, policy.demand, now):
                return ClaimBatch(leases=(), poisoned=(), now=now, scanned=False)
            if policy.demand.gate != "refill":
                self._state.last_scan_at = now
            limit = min(limit, free_slots(self._state, policy.demand, now, policy.orphan_ttl))
        ranked = candidates(self._state.runs.values(), now, policy.orphan_ttl)
        if policy.order == "tenants":
            chosen = choose_in_turn(ranked, limit, policy, self._state.runs.values())
        else:
            chosen = choose(ranked, limit, policy.preference)
        return self._hand_out(chosen, policy, now, token)

    def _hand_out(
        self, chosen: Sequence[Candidate], policy: ClaimPolicy, now: datetime, token: str | None
    ) -> ClaimBatch:
        leases, poisoned, stolen, reissued = [], [], 0, 0
        for candidate in chosen:
            stored = candidate.stored
            unredeemed = candidate.kind == "expired" and not stored.claim_redeemed
            if stored.claim_attempts >= policy.max_claim_attempts and not unredeemed:
                stored.poison(now, MAX_ATTEMPTS_REASON)
                poisoned.append(PoisonedClaim(run_id=stored.run.id, poisoned_at=now, poison_reason=MAX_ATTEMPTS_REASON))
                continue
            reissued += unredeemed
            stolen += candidate.kind == "expired" and not unredeemed
            if unredeemed and policy.delivery == "lease":
                stored.undelivered += 1
            else:
                stored.claim_token = token or self._state.ids.token()
            stored.claim_redeemed = policy.delivery == "direct"
            stored.claim_attempts += policy.delivery == "direct"
            stored.claimed_at = now
            stored.wake_at = None
            leases.append(_lease(stored, policy, now))
        return ClaimBatch(
            leases=tuple(leases),
            poisoned=tuple(poisoned),
            now=now,
            stolen=stolen,
            reissued=reissued,
            next_wake_at=next_wake(self._state.runs.values(), now),
        )

    def redeem_claim(self, lease: Lease, *, token: str) -> Redeemed:
        with self._state.lock:
            now = self._state.clock.now()
            stored = self._state.held(lease.run_id, lease.claim_token)
            if stored is None:
                # A repeat: the first reply was lost after the token had been traded.
                stored = self._state.held(lease.run_id, token)
            if stored is None or stored.run.checkpoint_seq != lease.checkpoint_seq:
                raise StaleFence(f"run {lease.run_id!r}: nothing is left to redeem at {lease.checkpoint_seq}")
            if not stored.is_held_under(token):
                stored.claim_token = token
                if stored.claimed_at is None or stored.claimed_at < now - lease.orphan_ttl / 3:
                    stored.claimed_at = now
                stored.claim_attempts += not stored.claim_redeemed
                stored.claim_redeemed = True
            return Redeemed(
                run=copy_run(stored.run),
                claim_token=token,
                claimed_at=stored.claimed_at or now,
                claim_attempt=stored.claim_attempts,
                inbox_seq=stored.inbox_seq,
                now=now,
            )

    def read_values(
        self, run_id: str, token: str, names: Collection[str], *, checkpoint_seq: int
    ) -> dict[str, JsonValue]:
        with self._state.lock:
            stored = self._state.held(run_id, token)
            if stored is None or stored.run.checkpoint_seq != checkpoint_seq:
                raise StaleFence(f"run {run_id!r} is not held under this token at {checkpoint_seq} any more")
            return {name: fresh(value) for name, value in stored.run.fields.items() if name in names}

    def take_due(self, policy: ClaimPolicy, *, token: str) -> Taken:
        return take_in_two(self, policy, token)

    def take_alone(self, policy: ClaimPolicy, *, token: str) -> Taken | None:
        ranked = self._ranked(policy)
        if policy.order != "age" or ranked is None or [candidate.kind for candidate in ranked] != ["ready"]:
            return None
        taken = self.take_due(policy, token=token)
        return None if taken.claim is None else taken

    def _take_along(self, request: TakeRequest) -> Taken | None:
        """One due run. None when nothing is due, or attempts are used up."""
        if self._ranked(request.policy) is None:
            return None
        if not request.redeem:
            return self._lease_along(request)
        taken = self.take_due(request.policy, token=request.token)
        return None if taken.claim is None else taken

    def _ranked(self, policy: ClaimPolicy) -> list[Candidate] | None:
        """What is due; None when the attempts of one of them are used up."""
        with self._state.lock:
            now = policy.now or self._state.clock.now()
            ranked = candidates(self._state.runs.values(), now, policy.orphan_ttl)
            used_up = any(one.stored.claim_attempts >= policy.max_claim_attempts for one in ranked)
        return None if used_up else ranked

    def _lease_along(self, request: TakeRequest) -> Taken | None:
        with self._state.lock:
            batch = self._claim(replace(request.policy, limit=1, delivery="lease"), request.token)
        return Taken(batch=batch) if batch.leases else None

    def _taken_before(self, request: TakeRequest) -> Taken | None:
        with self._state.lock:
            now = self._state.clock.now()
            held = [stored for stored in self._state.runs.values() if stored.is_held_under(request.token)]
            leases = tuple(_lease(stored, request.policy, now) for stored in held)
        if not leases:
            return None
        claim = self.redeem_claim(leases[0], token=request.token) if request.redeem else None
        return Taken(batch=ClaimBatch(leases=leases, poisoned=(), now=now), claim=claim)

    def refresh_claims(self, claims: Sequence[tuple[str, str]]) -> set[str]:
        with self._state.lock:
            return {run_id for run_id, token in claims if self._refresh(run_id, token)}

    def refresh_claim(self, run_id: str, token: str) -> None:
        with self._state.lock:
            if not self._refresh(run_id, token):
                raise ClaimLost(f"run {run_id!r} is not claimed under this token any more")

    def _refresh(self, run_id: str, token: str) -> bool:
        stored = self._state.held(run_id, token)
        if stored is None or stored.claimed_at is None:
            return False
        stored.claimed_at = max(stored.claimed_at, self._state.clock.now())
        return True

    def release_claim(
        self, run_id: str, token: str, *, uncounted: bool = False, delay: timedelta = timedelta(0)
    ) -> None:
        with self._state.lock:
            stored = self._state.held(run_id, token)
            if stored is None:
                return
            if uncounted:
                stored.take_attempt_back()
            stored.clear_claim()
            stored.wake_at = later(self._state.clock.now(), delay)

    def release_claims(self, claims: Sequence[tuple[str, str]]) -> int:
        with self._state.lock:
            now = self._state.clock.now()
            released = 0
            for run_id, token in claims:
                stored = self._state.held(run_id, token)
                if stored is None or stored.claim_redeemed:
                    continue
                stored.clear_claim()
                stored.wake_at = now
                released += 1
            return released

    def abandon_claim(self, run_id: str, token: str, policy: AbandonPolicy) -> AbandonDisposition:
        with self._state.lock:
            stored = self._state.held(run_id, token)
            if stored is None or stored.run.checkpoint_seq != policy.expected_checkpoint_seq:
                return "stale"
            now = policy.now or self._state.clock.now()
            abandons_before = stored.claim_abandons
            stored.take_attempt_back()
            stored.clear_claim()
            stored.claim_abandons += 1
            stored.abandon_reason = policy.reason
            if policy.poisoning and abandons_before >= policy.max_claim_abandons:
                stored.poison(now, MAX_ABANDONS_REASON)
                return "poisoned"
            delay = policy.delay
            if not policy.poisoning and policy.backoff is not None:
                delay = _backed_off(policy.backoff, abandons_before)
            stored.wake_at = later(now, delay)
            return "rescheduled"


def _lease(stored: StoredRun, policy: ClaimPolicy, now: datetime) -> Lease:
    return Lease(
        run_id=stored.run.id,
        tenant=stored.tenant,
        graph_id=stored.run.graph_id,
        graph_hash=stored.run.graph_hash,
        checkpoint_seq=stored.run.checkpoint_seq,
        claim_token=stored.claim_token or "",
        claimed_at=now,
        claim_attempt=stored.claim_attempts + (not stored.claim_redeemed),
        orphan_ttl=policy.orphan_ttl,
    )


def _backed_off(backoff: Backoff, abandons: int) -> timedelta:
    """`min(base * 2 ** abandons, cap)`; beyond 2 ** 64 microseconds every cap has been reached."""
    microsecond = timedelta(microseconds=1)
    nominal = (backoff.base // microsecond) << min(abandons, 64)
    return backoff.cap if nominal >= backoff.cap // microsecond else nominal * microsecond
