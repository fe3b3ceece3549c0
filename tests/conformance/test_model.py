"""Random histories of several runs, vehicles and messages, on each store, held against the pure model step by step.

Messages are delivered late, twice or never, vehicles freeze and come back after a steal, replies are lost and asked for
again: every token that was ever handed out may be used at any later moment.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule, run_state_machine_as_test
from support.builders import a_commit, a_decision, a_scan, an_abandon, new_commit_id
from support.meeting import share_always
from support.model import MAX_ABANDONS, MAX_ATTEMPTS, TTL, Model, ModelRun, Then
from support.scene import QUIETLY, RETAIN, Scene

from docket_celery.errors import InactiveRun, InvalidMutation, StaleFence
from docket_celery.run.document import Run, RunStatus
from docket_celery.storage import memory
from docket_celery.storage.contracts.claims import ClaimPolicy, Lease, Redeemed
from docket_celery.storage.contracts.taking import Taken, TakeRequest
from docket_celery.storage.contracts.values import QUIET, SYSTEM, CommitProposal, Release, Storage
from docket_celery.testing import ManualClock, SequentialIds

OWNERS = {"run-1": "a", "run-2": "a", "run-3": "a", "run-4": "b", "run-5": "b", "run-6": None}
RUN_IDS = tuple(OWNERS)
DELAY = timedelta(seconds=15)
STEPS = st.sampled_from([timedelta(microseconds=1), timedelta(seconds=7), TTL / 3, TTL, TTL * 2])
THENS: st.SearchStrategy[Then] = st.sampled_from(["retain", "quietly", "immediate", "later", "external", "terminal"])
RELEASES: st.SearchStrategy[Then] = st.sampled_from(["immediate", "immediate", "later", "external", "terminal"])

Opening = Callable[[ManualClock], Storage]


class History(RuleBasedStateMachine):
    """Plays one history on a store and on the model."""

    opening: Opening

    leases: Bundle[Lease] = Bundle("leases")
    holders: Bundle[tuple[str, Run]] = Bundle("holders")
    """A token, and the run as its holder last saw it."""
    proposals: Bundle[tuple[CommitProposal, Then]] = Bundle("proposals")

    def __init__(self) -> None:
        super().__init__()
        clock = ManualClock()
        self.scene = Scene(self.opening(clock), clock, SequentialIds())
        self.model = Model()
        self.tokens: list[tuple[str, str]] = []
        for run_id in RUN_IDS:
            self.scene.start(run_id, tenant=OWNERS[run_id])
            self.model.runs[run_id] = ModelRun(wake_at=self.scene.now, tenant=OWNERS[run_id])

    def _schedule(self, then: Then) -> dict[str, Any]:
        """The status and schedule that a transition proposes."""
        parts: dict[Then, dict[str, Any]] = {
            "retain": {"schedule": RETAIN},
            "quietly": {"schedule": QUIETLY},
            "immediate": {"schedule": Release(kind="immediate")},
            "later": {"schedule": Release(kind="at", at=self.scene.now + DELAY)},
            "external": {"status": RunStatus.WAITING},
            "terminal": {"status": RunStatus.DONE},
        }
        return parts[then]

    @rule(step=STEPS)
    def time_passes(self, step: timedelta) -> None:
        self.scene.clock.advance(step)

    @rule(
        target=leases,
        limit=st.sampled_from([1, 2, 3, 5]),
        preference=st.sampled_from([None, "ready", "expired"]),
        direct=st.sampled_from([False, False, True]),
        turns=st.none() | st.tuples(st.sampled_from([0.0, 0.4, 0.9]), st.sampled_from([None, 1, 2])),
    )
    def claim(self, limit: int, preference: Any, direct: bool, turns: tuple[float, int | None] | None) -> Any:
        expected = self.model.outcomes(self.scene.now, limit, preference, turns)
        batch = self.scene.runs.claim_due(
            a_scan(
                limit=limit,
                preference=preference,
                delivery="direct" if direct else "lease",
                max_claim_attempts=MAX_ATTEMPTS,
                order="age" if turns is None else "tenants",
                fraction=0.0 if turns is None else turns[0],
                tenant_cap=None if turns is None else turns[1],
            )
        )
        poisoned = {run_id for run_id, fate in expected.items() if fate == "poison"}
        assert {halted.run_id for halted in batch.poisoned} == poisoned
        assert {lease.run_id for lease in batch.leases} == expected.keys() - poisoned
        for run_id in poisoned:
            self.model.runs[run_id].halt()
        for lease in batch.leases:
            again = expected[lease.run_id] == "again"
            run = self.model.runs[lease.run_id]
            assert (lease.claim_token == run.token) == (again and not direct)
            assert (lease.run_id, lease.claim_token) not in self.tokens or (again and not direct)
            self.model.claimed(lease.run_id, lease.claim_token, self.scene.now, direct=direct, again=again)
            assert lease.claim_attempt == run.attempts + (not direct)
            assert lease.checkpoint_seq == run.seq
            self.tokens.append((lease.run_id, lease.claim_token))
        return multiple(*batch.leases)

    @rule(target=holders, preference=st.sampled_from([None, "ready", "expired"]))
    def take(self, preference: Any) -> Any:
        expected = self.model.outcomes(self.scene.now, 1, preference)
        token = f"private-{self.scene.ids.token()}"
        taken = self.scene.runs.take_due(
            a_scan(limit=1, preference=preference, max_claim_attempts=MAX_ATTEMPTS), token=token
        )
        poisoned = {run_id for run_id, fate in expected.items() if fate == "poison"}
        assert {halted.run_id for halted in taken.batch.poisoned} == poisoned
        assert {lease.run_id for lease in taken.batch.leases} == expected.keys() - poisoned
        for run_id in poisoned:
            self.model.runs[run_id].halt()
        if taken.claim is None:
            return multiple()
        return self._note_taken(taken, token, again="again" in expected.values())

    @rule(target=holders)
    def take_alone(self) -> Any:
        expected = self.model.outcomes(self.scene.now, len(RUN_IDS), None)
        alone = list(expected.values()) == ["fresh"] and self.model.runs[next(iter(expected))].claimed_at is None
        token = f"private-{self.scene.ids.token()}"
        taken = self.scene.runs.take_alone(a_scan(limit=1, max_claim_attempts=MAX_ATTEMPTS), token=token)
        assert (taken is not None) == alone
        return multiple() if taken is None else self._note_taken(taken, token, again=False)

    @rule(target=holders, proposed=proposals, preference=st.sampled_from([None, "ready", "expired"]))
    def commit_and_take_along(self, proposed: tuple[CommitProposal, Then], preference: Any) -> Any:
        request = TakeRequest(policy=self._one(preference), token=f"private-{self.scene.ids.token()}")
        came = self._commit_along(proposed, request)
        return multiple() if came is None else self._note_taken(came[0], request.token, again=came[1])

    @rule(target=leases, proposed=proposals, preference=st.sampled_from([None, "ready", "expired"]))
    def commit_and_lease_along(self, proposed: tuple[CommitProposal, Then], preference: Any) -> Any:
        request = TakeRequest(policy=self._one(preference), token=f"along-{self.scene.ids.token()}", redeem=False)
        came = self._commit_along(proposed, request)
        if came is None:
            return multiple()
        taken, again = came
        (lease,) = taken.batch.leases
        run = self.model.runs[lease.run_id]
        assert taken.claim is None
        assert lease.claim_token == (run.token if again else request.token)
        self.model.claimed(lease.run_id, lease.claim_token, self.scene.now, direct=False, again=again)
        assert (lease.claim_attempt, lease.checkpoint_seq) == (run.attempts + 1, run.seq)
        self.tokens.append((lease.run_id, lease.claim_token))
        return lease

    def _one(self, preference: Any) -> ClaimPolicy:
        return a_scan(limit=1, preference=preference, max_claim_attempts=MAX_ATTEMPTS)

    def _commit_along(self, proposed: tuple[CommitProposal, Then], request: TakeRequest) -> tuple[Taken, bool] | None:
        """Who came along, and whether its claim is an expired one that nobody had redeemed. It is who would be taken
        after the commit, the run itself set aside; nobody need come.
        """
        proposal, then = proposed
        preference = request.policy.preference
        at = proposal.schedule.at if isinstance(proposal.schedule, Release) else None
        args = (proposal.run.id, proposal.expected_checkpoint_seq, proposal.claim_token, proposal.commit_id, then)
        if not self.model.commit(*args, at or self.scene.now, self.scene.now):
            with pytest.raises(StaleFence):
                self.scene.runs.commit(SYSTEM, proposal, take=request)
            return None
        taken = self.scene.runs.commit(SYSTEM, proposal, take=request).taken
        if taken is None:
            return None
        assert then != "retain"
        (lease,) = taken.batch.leases
        expected = self.model.outcomes(self.scene.now, 1, preference)
        if lease.run_id not in expected:
            assert list(expected) == [proposal.run.id]
            expected = self.model.outcomes(self.scene.now, 2, preference)
        return taken, expected[lease.run_id] == "again"

    def _note_taken(self, taken: Taken, token: str, *, again: bool) -> tuple[str, Run]:
        assert isinstance(taken.claim, Redeemed)
        (lease,) = taken.batch.leases
        run = self.model.runs[lease.run_id]
        self.model.claimed(lease.run_id, "between", self.scene.now, direct=False, again=again)
        assert self.model.redeem(lease.run_id, lease.checkpoint_seq, "between", token, self.scene.now)
        assert (lease.claim_token, lease.claim_attempt, taken.claim.claim_attempt) == (
            token,
            run.attempts,
            run.attempts,
        )
        self.tokens.append((lease.run_id, token))
        return token, taken.claim.run

    @rule(target=holders, lease=leases)
    def redeem(self, lease: Lease) -> Any:
        return self._redeem(lease, self.scene.ids.token())

    @rule(target=holders, lease=leases)
    def redeem_and_ask_again(self, lease: Lease) -> Any:
        token = self.scene.ids.token()
        self._redeem(lease, token)
        return self._redeem(lease, token)

    @rule(target=holders, lease=leases)
    def go_on_under_the_leases_own_token(self, lease: Lease) -> tuple[str, Run]:
        return lease.claim_token, self.scene.run(lease.run_id)

    def _redeem(self, lease: Lease, token: str) -> Any:
        token = f"private-{token}"
        args = (lease.run_id, lease.checkpoint_seq, lease.claim_token, token, self.scene.now)
        if not self.model.redeem(*args):
            with pytest.raises(StaleFence):
                self.scene.runs.redeem_claim(lease, token=token)
            return multiple()
        redeemed = self.scene.runs.redeem_claim(lease, token=token)
        assert redeemed.claim_attempt == self.model.runs[lease.run_id].attempts
        assert redeemed.run == self.scene.run(lease.run_id)
        self.tokens.append((lease.run_id, token))
        return token, redeemed.run

    @rule(target=holders, holder=holders, then=THENS)
    def propose_and_commit(self, holder: tuple[str, Run], then: Then) -> Any:
        return self._commit(self._propose(holder, then, 1))

    @rule(target=proposals, holder=holders, then=THENS, events=st.integers(0, 2))
    def propose(self, holder: tuple[str, Run], then: Then, events: int) -> tuple[CommitProposal, Then]:
        return self._propose(holder, then, events)

    @rule(target=holders, proposed=proposals)
    def commit(self, proposed: tuple[CommitProposal, Then]) -> Any:
        """Any proposal, old or new; one that is already in is a repeat after a lost reply."""
        return self._commit(proposed)

    def _propose(self, holder: tuple[str, Run], then: Then, events: int) -> tuple[CommitProposal, Then]:
        token, run = holder
        fields = {"step": run.checkpoint_seq}
        return a_commit(run, token, at=self.scene.now, events=events, fields=fields, **self._schedule(then)), then

    def _commit(self, proposed: tuple[CommitProposal, Then]) -> Any:
        proposal, then = proposed
        at = proposal.schedule.at if isinstance(proposal.schedule, Release) else None
        args = (proposal.run.id, proposal.expected_checkpoint_seq, proposal.claim_token, proposal.commit_id, then)
        if not self.model.commit(*args, at or self.scene.now, self.scene.now):
            with pytest.raises(StaleFence):
                self.scene.runs.commit(SYSTEM, proposal)
            return multiple()
        committed = self.scene.runs.commit(SYSTEM, proposal)
        run = self.model.runs[proposal.run.id]
        if committed == QUIET:
            assert then == "quietly"
        else:
            assert committed.claimed_at == (run.claimed_at if run.token == proposal.claim_token else None)
        assert self.scene.run(proposal.run.id) == proposal.run
        return proposal.claim_token, proposal.run

    @rule(holder=holders, uncounted=st.booleans(), delay=st.sampled_from([timedelta(0), DELAY]))
    def release(self, holder: tuple[str, Run], uncounted: bool, delay: timedelta) -> None:
        token, run = holder
        self.scene.runs.release_claim(run.id, token, uncounted=uncounted, delay=delay)
        self.model.release(run.id, token, self.scene.now + delay, uncounted=uncounted)

    @rule(lease=leases)
    def release_a_lease_that_could_not_be_published(self, lease: Lease) -> None:
        run = self.model.runs[lease.run_id]
        held = run.token == lease.claim_token and not run.redeemed
        assert self.scene.runs.release_claims([(lease.run_id, lease.claim_token)]) == held
        if held:
            self.model.release(lease.run_id, lease.claim_token, self.scene.now, uncounted=True)

    @rule(holder=holders, poisoning=st.booleans())
    def abandon(self, holder: tuple[str, Run], poisoning: bool) -> None:
        token, run = holder
        policy = an_abandon(run.checkpoint_seq, delay=DELAY, max_claim_abandons=MAX_ABANDONS, poisoning=poisoning)
        expected = self.model.abandon(run.id, run.checkpoint_seq, token, self.scene.now + DELAY, poisoning=poisoning)
        assert self.scene.runs.abandon_claim(run.id, token, policy) == expected

    @rule()
    def refresh_everything_ever_handed_out(self) -> None:
        """At most one token of a run is alive, and it is the one the model says."""
        expected = self.model.refresh(self.tokens, self.scene.now)
        assert self.scene.runs.refresh_claims(self.tokens) == expected

    @rule(run_id=st.sampled_from(RUN_IDS), then=RELEASES)
    def mutate(self, run_id: str, then: Then) -> None:
        commit_id = new_commit_id()
        decide = lambda run, now: a_decision(run, at=now, **self._schedule(then))  # noqa: E731
        if self.model.runs[run_id].status == "done":
            with pytest.raises(InvalidMutation):
                self.scene.runs.mutate_run(SYSTEM, run_id, decide, commit_id=commit_id)
            return
        self.scene.runs.mutate_run(SYSTEM, run_id, decide, commit_id=commit_id)
        self.model.move(run_id, commit_id, then, self.scene.now + DELAY, self.scene.now)

    @rule(run_id=st.sampled_from(RUN_IDS))
    def recover(self, run_id: str) -> None:
        if self.model.runs[run_id].status == "done":
            with pytest.raises(InactiveRun):
                self.scene.runs.retry_poisoned_run(SYSTEM, run_id)
            return
        self.scene.runs.retry_poisoned_run(SYSTEM, run_id)
        self.model.recover(run_id, self.scene.now)

    @invariant()
    def the_store_agrees_with_the_model(self) -> None:
        for run_id, run in self.model.runs.items():
            info = self.scene.info(run_id)
            assert (info.run.status, info.run.checkpoint_seq) == (run.status, run.seq)
            assert (info.wake_at, info.claimed_at, info.claim_redeemed) == (run.wake_at, run.claimed_at, run.redeemed)
            counters = (info.claim_attempts, info.claim_abandons, info.undelivered)
            assert counters == (run.attempts, run.abandons, run.undelivered)
            assert (info.poisoned_at is not None) == run.poisoned

    @invariant()
    def a_healthy_running_run_has_exactly_one_of_wake_and_claim(self) -> None:
        for run_id in self.model.runs:
            info = self.scene.info(run_id)
            present = (info.wake_at is not None) + (info.claimed_at is not None)
            assert present == (info.run.status is RunStatus.RUNNING and info.poisoned_at is None)

    @invariant()
    def events_number_themselves_without_a_hole(self) -> None:
        for run_id in self.model.runs:
            page = self.scene.storage.events.list_events(SYSTEM, run_id, limit=1_000)
            assert [event.seq for event in page.events] == list(range(1, page.latest_committed + 1))


@pytest.mark.parametrize(
    ("kind", "histories", "steps"),
    [("memory", 400, 80), ("postgres", 40, 60), ("together", 40, 60)],
    ids=["memory", "postgres", "together"],
)
def test_random_histories_keep_to_the_model(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, kind: str, histories: int, steps: int
) -> None:
    """`together`: each commit goes in the statement that several share."""
    thorough = bool(request.config.getoption("--thorough"))
    if kind == "memory":
        opening: Opening = lambda clock: memory.open_storage(clock=clock)  # noqa: E731
    else:
        shared = request.getfixturevalue("shared_store")
        opening = shared.lent
    if kind == "together":
        share_always(shared.storage.runs, monkeypatch)

    class Bound(History):
        pass

    Bound.opening = staticmethod(opening)
    run_state_machine_as_test(
        Bound,
        settings=settings(
            max_examples=histories * (10 if thorough else 1),
            stateful_step_count=steps,
            deadline=None,
            derandomize=not thorough,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
