"""Every benchmark of ours runs, for one short turn, so that none rots. How fast it was is nobody's concern here."""

from __future__ import annotations

import pytest

from benchmarks import claims, fairness, memory, starts, throughput, wal


def test_throughput_runs_and_every_figure_stands_beside_its_floor() -> None:
    rows = throughput.measure(rounds=1, runs=5)
    throughput.report(rows)
    assert [row["figure"] for row in rows] == [name for name, _ in throughput.FIGURES]
    assert all(row["median"] > 0 and row["of_floor"] > 0 for row in rows)


def test_wal_runs_and_every_workload_has_written() -> None:
    rows = wal.measure(rounds=1, runs=1)
    wal.report(rows)
    assert len(rows) == 5
    assert all(row["wal_bytes_per_step"] > 0 for row in rows)


def test_claims_runs_over_backlog_exchanges_and_hot_updates() -> None:
    rows = claims.measure([claims.Backlog(due=50, done=50)], 0.05, claimers=(1,), batches=(0, 1), commits=10)
    claims.report(rows)
    assert [row["order"] for row in rows if "claimers" in row] == list(claims.STATEMENTS)
    assert [row["order"] for row in rows if "leases" in row] == list(claims.STATEMENTS)
    assert any("operation" in row for row in rows)
    assert any("hot_share" in row for row in rows)


def test_memory_runs_and_tells_of_each_worker() -> None:
    rows = memory.measure(warm_up=2, runs=4)
    memory.report(rows)
    assert [row["worker"] for row in rows] == ["w1", "w2"]


def test_fairness_runs_and_turns_serve_the_small_tenants_before_the_hot_one() -> None:
    rows = {row["order"]: row for row in fairness.measure(40)}
    fairness.report(list(rows.values()))
    assert rows["age"]["last"] == 100
    assert rows["tenants"]["last"] < 100


def test_starts_runs_in_each_way(capsys: pytest.CaptureFixture[str]) -> None:
    starts.compare(20)
    assert capsys.readouterr().out.count("runs/s") == 4
