"""Scopes: system sees everything, an owner only its own, and a wrong scope looks exactly like absence."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.builders import a_commit, new_commit_id
from support.scene import Scene

from docket_celery.errors import InvalidInput, NotFound
from docket_celery.run.document import Run
from docket_celery.storage.contracts.values import SYSTEM, TENANTLESS, ListQuery, MutationDecision, NoChange, Scope

ACME = Scope.of("acme")
BOLT = Scope.of("bolt")
OWNERS = {"run-none": TENANTLESS, "run-acme": ACME, "run-bolt": BOLT}


@pytest.fixture
def shared(scene: Scene) -> Scene:
    """One run of each owner."""
    for run_id, scope in OWNERS.items():
        scene.start(run_id, tenant=scope.tenant)
    return scene


def _operations(scene: Scene, scope: Scope, run_id: str) -> list[Callable[[], object]]:
    unchanged: Callable[[Run, object], MutationDecision] = lambda run, now: NoChange()  # noqa: E731
    return [
        lambda: scene.runs.fetch_run(scope, run_id),
        lambda: scene.runs.inspect_run(scope, run_id),
        lambda: scene.storage.events.list_events(scope, run_id),
        lambda: scene.runs.mutate_run(scope, run_id, unchanged, commit_id=new_commit_id()),
        lambda: scene.runs.retry_poisoned_run(scope, run_id),
    ]


def test_an_owner_reads_its_own_run(shared: Scene) -> None:
    for run_id, scope in OWNERS.items():
        for operation in _operations(shared, scope, run_id):
            operation()


def test_the_system_reads_every_run(shared: Scene) -> None:
    for run_id in OWNERS:
        for operation in _operations(shared, SYSTEM, run_id):
            operation()


def test_a_wrong_scope_is_indistinguishable_from_an_unknown_run(shared: Scene) -> None:
    for run_id, owner in OWNERS.items():
        for scope in (TENANTLESS, ACME, BOLT):
            if scope == owner:
                continue
            for seen, absent in zip(
                _operations(shared, scope, run_id), _operations(shared, scope, "run-absent"), strict=True
            ):
                with pytest.raises(NotFound) as hidden:
                    seen()
                with pytest.raises(NotFound) as missing:
                    absent()
                assert str(hidden.value).replace(run_id, "run-absent") == str(missing.value)


def test_a_commit_in_a_wrong_scope_is_not_found_even_with_the_right_token(shared: Scene) -> None:
    tokens = {lease.run_id: shared.redeem(lease) for lease in shared.scan().leases}
    proposal = a_commit(shared.run("run-acme"), tokens["run-acme"], at=shared.now)
    for scope in (TENANTLESS, BOLT):
        with pytest.raises(NotFound):
            shared.runs.commit(scope, proposal)
    shared.runs.commit(ACME, proposal)


def test_lists_hold_only_what_the_scope_sees(shared: Scene) -> None:
    def listed(scope: Scope) -> set[str]:
        return {summary.run_id for summary in shared.runs.list_runs(scope, ListQuery()).runs}

    assert listed(SYSTEM) == set(OWNERS)
    for run_id, scope in OWNERS.items():
        assert listed(scope) == {run_id}


def test_the_engine_claims_the_runs_of_every_owner_and_the_lease_names_it(shared: Scene) -> None:
    assert {lease.run_id: lease.scope for lease in shared.scan().leases} == OWNERS


def test_a_mutation_is_never_called_in_a_wrong_scope(shared: Scene) -> None:
    called: list[Run] = []

    def mutation(run: Run, now: object) -> MutationDecision:
        called.append(run)
        return NoChange()

    with pytest.raises(NotFound):
        shared.runs.mutate_run(BOLT, "run-acme", mutation, commit_id=new_commit_id())
    assert called == []


@pytest.mark.parametrize("tenant", ["", "x" * 256, "nul \x00"])
def test_a_tenant_needs_a_usable_name(tenant: str) -> None:
    with pytest.raises(InvalidInput):
        Scope.of(tenant)
