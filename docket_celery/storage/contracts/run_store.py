"""The run aggregate: every operation that touches a run row's document, schedule, claim, fence or poison facts.

They are one contract because they guard one invariant: a healthy `running` run has exactly one of a wake and a claim;
a poisoned one has neither; every other status has neither claim nor wake. All instants that decide anything are the
store's own clock's; a `now` in a policy pins it for tests.

Counters: `claim_attempts` counts launches since the last committed progress, `claim_abandons` consecutive hand-backs
before execution, `undelivered` leases that expired unredeemed. Any committed transition resets all three.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

from docket_celery.run.document import JsonValue, Run
from docket_celery.run.views import RunInfo, RunPage
from docket_celery.storage.contracts.claims import (
    AbandonDisposition,
    AbandonPolicy,
    ClaimBatch,
    ClaimPolicy,
    Lease,
    Redeemed,
)
from docket_celery.storage.contracts.taking import Taken, TakeRequest
from docket_celery.storage.contracts.values import (
    CommitProposal,
    Committed,
    InitialRun,
    ListQuery,
    Mutated,
    MutationDecision,
    Scope,
    Started,
)


class RunStore(Protocol):
    """Persists runs and guards every transition. Methods that say so raise; dispositions are returned."""

    def insert_run(self, scope: Scope, initial: InitialRun, *, connection: Any = None) -> Started:
        """Inserts one initialised run with its events and its first wake, in one transaction.

        The owner scope alone decides the stored tenant. The run must carry checkpoint sequence 1, its start time, a
        durable status and events `1..event_seq`; anything else is `InvalidCommit`. Its graph version must exist in the
        same scope, otherwise `NotFound`. A run that is terminal from the start has no wake.

        The store stamps `started_at`, `updated_at`, a terminal run's `finished_at` and the events' `at` with its own
        clock; the returned run carries them.

        With a start key: if a run of this scope holds it with the same graph version and input digest, that run is
        returned with `created=False`, whatever its status; a different one raises `KeyConflict`.

        With `connection`, one of the database's own driver, the run joins that connection's open transaction and exists
        once its owner commits; a refusal leaves the transaction usable. A store without a database refuses it with
        `InvalidInput`.
        """
        ...

    def insert_runs(
        self, scope: Scope, initials: Sequence[InitialRun], *, connection: Any = None
    ) -> tuple[Started, ...]:
        """Inserts many runs as `insert_run` would one, in one statement: all of them or, after any refusal, none.

        The answers stand in the order of `initials`. A start key that occurs twice is held by the first of its runs;
        the second is `created=False`, or `KeyConflict` when it means another start.
        """
        ...

    def fetch_run(self, scope: Scope, run_id: str) -> Run:
        """The last committed run. `NotFound` for unknown or out of scope; undecodable state is `CorruptRecord`."""
        ...

    def list_runs(self, scope: Scope, query: ListQuery) -> RunPage:
        """Summaries newest first by `(started_at, run_id)`; scope and filters are applied by the store itself.

        No state is decoded. An empty result keeps the given cursor and has `has_more=False`.
        """
        ...

    def inspect_run(self, scope: Scope, run_id: str) -> RunInfo:
        """The committed run with its operational facts, never the token. Errors as `fetch_run`."""
        ...

    def claim_due(self, policy: ClaimPolicy) -> ClaimBatch:
        """Atomically claims due runs, for the system.

        Ready: running, not poisoned, unclaimed, `wake_at <= now`. Expired: running, not poisoned, claimed, and
        `claimed_at < now - orphan_ttl` (exactly at the boundary is not yet expired).

        Each candidate ends as one outcome:
        - poisoned, when `claim_attempts` has reached `max_claim_attempts` (wake and claim cleared, reason
          `max_claim_attempts_exceeded`), unless it is an expired claim that was never redeemed;
        - leased again under its token, when `delivery` is `lease` and it is an expired, never redeemed claim
          (`undelivered` + 1, `claimed_at` = now);
        - leased under a fresh token (`claimed_at` = now, wake cleared). Delivery `direct` counts the attempt and marks
          the claim redeemed at once; `lease` leaves the count, and the lease says stored + 1.

        With `limit` >= 2 and both classes non-empty, each gets at least one outcome; the rest follow
        `(eligible_at, id)`, where a ready run is eligible at its wake and an expired one at `claimed_at + orphan_ttl`.
        With `limit` 1, `preference` is served first and falls through when its class is empty. Rows locked by others
        are skipped. `demand` narrows `limit` inside the same statement. A refill may overlook, until the next tick at
        the latest, what was written with an earlier instant than runs it has already seen.

        That is the order `age`. In the order `tenants` the ready runs are served breadth-first instead. The owners of
        ready runs are the active tenants (those that belong to nobody count as one). They stand in a ring that begins
        at one of them, chosen evenly by `fraction`, and no tenant gets its second run while another one is still to
        get its first, nor its third before all second ones, and so on.
        - Within its turns a tenant's runs in progress, which have committed since they were started, go before those
          that were never begun; each kind by `(wake_at, id)`. So a run that parked at once, because its drain budget
          was used up or its worker stopped, keeps its tenant's turn: a tenant finishes what it has begun, and what
          never ends holds up its own tenant only.
        - Expired claims stay a class of their own, by age over all tenants: a steal replaces a claim. With `limit` >= 2
          each class may take half (the odd place is the ready one's), and what one leaves the other takes. With
          `limit` 1 and no preference the expired class comes first.
        - With `tenant_cap`, a tenant whose stored claims, expired or not, have reached it has no turn; those about to
          be handed out count. A steal is never refused.
        A store may bound how many tenants one scan looks at, so that its cost does not grow with theirs; which ones it
        sees is then a matter of `fraction` as well, so that each is seen by and by.
        """
        ...

    def redeem_claim(self, lease: Lease, *, token: str) -> Redeemed:
        """Trades a lease's token for the private `token` chosen by the caller, and returns the run.

        Succeeds when the run is running, unpoisoned, at the lease's sequence, and its stored token is the lease's or
        already `token` (a repeat after a lost reply, which counts nothing). The first success counts the attempt
        and marks the claim redeemed; as a commit that retains its claim does, it moves `claimed_at` to now only when
        that is older than a third of the lease's TTL. Otherwise `StaleFence` and nothing changes. A lease that was
        claimed `direct` was counted then and is not counted again. Undecodable state raises `CorruptRecord` after
        the redemption, so that the caller, who holds `token`, can abandon.

        A store may leave large values where they are: then the run names them as `unread`, for `read_values`.
        """
        ...

    def read_values(
        self, run_id: str, token: str, names: Collection[str], *, checkpoint_seq: int
    ) -> dict[str, JsonValue]:
        """The values of these fields (at least one), by name, of a run that is claimed under `token` and stands at
        `checkpoint_seq`. Changes nothing.

        Otherwise `StaleFence`: every value belongs to that sequence. A field without a value is left out. A value that
        cannot be decoded raises `CorruptRecord`.
        """
        ...

    def take_due(self, policy: ClaimPolicy, *, token: str) -> Taken:
        """Claims one due run as `claim_due` with `limit` 1 would, and redeems it under `token`, chosen by the caller.

        For a slot that is free and begins the run at once: the attempt is counted, as by any claim without a broker.
        A store may do it in one statement, and leave values unread as a redemption does.
        """
        ...

    def take_alone(self, policy: ClaimPolicy, *, token: str) -> Taken | None:
        """Takes as `take_due` does, but only if the run is all that a scan would find: no other run is due, no claim
        has expired, and a slot is free by the policy's demand.

        For a slot that a nudge has reached. None says nothing about what is due: then the slot has to scan. It is
        always None in the order `tenants`, and where the attempts of the run are used up.
        """
        ...

    def refresh_claims(self, claims: Sequence[tuple[str, str]]) -> set[str]:
        """Moves `claimed_at` of the given `(run_id, token)` claims to now, never backward; rows locked by others are
        left out. Returns the ids of the runs still claimed under their token and refreshed.
        """
        ...

    def refresh_claim(self, run_id: str, token: str) -> None:
        """Moves `claimed_at` to the store's now, never backward. `ClaimLost` when the token is not the current one."""
        ...

    def release_claim(
        self, run_id: str, token: str, *, uncounted: bool = False, delay: timedelta = timedelta(0)
    ) -> None:
        """Gives the claim back and wakes the run after `delay`.

        Idempotent: a stale token or a missing run changes nothing.

        `uncounted` also takes back the attempt that a redemption (or a direct claim) had counted.
        """
        ...

    def release_claims(self, claims: Sequence[tuple[str, str]]) -> int:
        """Releases several unredeemed claims `(run_id, token)` at once, uncounted; how many were still held."""
        ...

    def abandon_claim(self, run_id: str, token: str, policy: AbandonPolicy) -> AbandonDisposition:
        """Hands back a claim whose vehicle could not begin execution, or cannot read a value that it needs.

        Fenced on token and `expected_checkpoint_seq`; otherwise `stale` and nothing changes. Takes the counted attempt
        back (not below zero), adds one abandon, stores the reason, and either schedules the next wake (`rescheduled`)
        or, when the abandon count had already reached the maximum and the policy poisons, halts the run with reason
        `max_claim_abandons_exceeded` (`poisoned`). Never touches document, sequence or `updated_at`.
        """
        ...

    def commit(self, scope: Scope, proposal: CommitProposal, *, take: TakeRequest | None = None) -> Committed:
        """Commits one transition under token and sequence: run, events, changes and schedule, or nothing.

        `InvalidCommit` comes first, before any lookup: an empty token, a sequence that is not expected + 1, events not
        numbered up to the run's `event_seq` without a hole or carrying another run's id, an instant without a time
        zone, an end without its time, a change that is not what the run holds, a schedule that the status does not
        allow.
        Then `NotFound` (unknown or out of scope), then `StaleFence`. A commit whose own `commit_id` is already stored
        at the proposed sequence has succeeded. A different event under the same sequence is `EventConflict`.

        The values of the run's `unread` fields stay as they are stored, but for items that a change appends to them.
        Success resets all counters and the abandon reason. `Retain` keeps the token and sets `claimed_at` to now only
        when it is older than a third of the TTL; where it is not, a quiet one may be answered with `QUIET`, but a
        repeated one is answered in full. A release clears claim and redeemed mark; one that leaves newer inbox entries
        behind wakes at once.

        Allowed: Retain, immediate and at with `running`; external with `waiting`; terminal with a terminal status.

        With `take`, a commit that releases its claim may bring along the run that `take_due` would take next, for the
        slot that it frees; or, if it is not to be redeemed, the lease that `claim_due` would hand out next. Nothing is
        taken unless the commit took effect. A store does so only where it can decide within the commit's own exchange,
        so that `taken` None says nothing about what is due. A repeated commit finds what it took before.
        """
        ...

    def mutate_run(
        self, scope: Scope, run_id: str, mutation: Callable[[Run, datetime], MutationDecision], *, commit_id: str
    ) -> Mutated:
        """Serialises a short read, a pure decision and an optional write, on the latest committed run.

        `mutation` gets the run and the store's clock, read after it; what it decides is written only if no other commit
        came in between. Scope is checked first: `NotFound` without calling `mutation`. A `Commit` must keep the run id,
        carry exactly the current sequence + 1 and release (retain is `InvalidMutation`); it revokes any claim, resets
        counters and poison facts. `NoChange` touches nothing at all. What `mutation` raises is passed on and changes
        nothing. `mutation` may be called again, when the database asks for a retry or the run has moved on: it must be
        pure.
        """
        ...

    def force_cancel(self, scope: Scope, run_id: str, *, reason: str, commit_id: str) -> Mutated:
        """Ends a run as cancelled without reading its document, its fields or its events: for one that cannot be read.

        Revokes any claim, clears poison and counters, empties the document, keeps the fields, and adds one event that
        says so, after all that are there. The result's run is what the row itself says; its `fields` are left out.

        `NotFound` first. A cancelled run is left as it is; one that ended otherwise is `InactiveRun`.
        """
        ...

    def retry_poisoned_run(self, scope: Scope, run_id: str) -> Run:
        """Clears poison facts and counters and wakes the run now.

        `NotFound` first, then `InactiveRun` for a terminal run. A healthy run is left exactly as it is.
        """
        ...
