"""An app that was there before: the same settings, routes, results and schedule without docket and with it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from celery import Celery, chain, chord, group
from fleet import PATIENCE, Fleet, eventually
from proj.graphs import line
from proj.shop import make_shop, settings_of

from docket_celery import Docket
from docket_celery.run.document import RunStatus

OURS = "docket"
NIGHTS = "SELECT count(*) FROM nights"


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """What the app does for its owner, as far as it must not change."""

    chain: int
    chord: int
    group: list[int]
    queues: dict[str, str]
    stored: dict[str, Any]
    served: list[str]


class Shop(Fleet):
    """The existing app's processes; `docket` is of no use before it is added."""

    module = "proj.shop"
    added = False

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, "PROJ_SHOP": "docket" if self.added else "alone"}

    def behaviour(self, app: Celery, worker: str) -> Behaviour:
        app.loader.import_default_modules()
        add, total, where = (app.tasks[f"proj.shop_tasks.{name}"] for name in ("add", "total", "where"))
        chained = chain(add.s(1, 2), add.s(4), add.s(8)).apply_async()
        joined = chord([add.s(n, n) for n in range(10)], total.s()).apply_async()
        grouped = group(add.s(n, 1) for n in range(3)).apply_async()
        plain, routed = where.delay(), where.apply_async(queue="reports")
        single = add.delay(20, 3)
        assert single.get(timeout=PATIENCE) == 23
        meta = json.loads(app.backend.get(app.backend.get_key_for_task(single.id)))
        queues = app.control.inspect([f"{worker}@test"], timeout=PATIENCE, limit=1).active_queues()
        return Behaviour(
            chain=chained.get(timeout=PATIENCE),
            chord=joined.get(timeout=PATIENCE),
            group=grouped.get(timeout=PATIENCE),
            queues={"plain": plain.get(timeout=PATIENCE), "routed": routed.get(timeout=PATIENCE)},
            stored={key: value for key, value in meta.items() if key not in ("task_id", "date_done", "worker")},
            served=sorted(queue["name"] for queue in queues[f"{worker}@test"]),
        )


@pytest.fixture
def shop(postgres_url: str, fleet: Fleet, tmp_path: Any) -> Any:
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE TABLE nights (mark text, at timestamptz DEFAULT clock_timestamp())")
    shop = Shop(postgres_url, fleet.broker, tmp_path, {})
    yield shop
    shop.stop()


def test_adding_docket_to_an_app_changes_none_of_its_settings(shop: Shop) -> None:
    arguments = (shop.broker.url(), shop.database_url)
    alone, joined = make_shop(*arguments, with_docket=False), make_shop(*arguments, with_docket=True)
    before, after = settings_of(alone), settings_of(joined)
    schedule = joined.conf.beat_schedule
    assert {key for key in after if before.get(key) != after[key]} == {"beat_schedule", "docket_database_url"}
    assert {name: entry for name, entry in schedule.items() if not name.startswith(OURS)} == alone.conf.beat_schedule
    assert alone.tasks.keys() == {name for name in joined.tasks if not name.startswith(OURS)}
    for name, task in alone.tasks.items():
        options = ("acks_late", "time_limit", "soft_time_limit", "serializer", "ignore_result", "queue", "compression")
        assert [getattr(joined.tasks[name], option, None) for option in options] == [
            getattr(task, option, None) for option in options
        ]
    routed = {app: repr(app.amqp.router.route({}, "proj.shop_tasks.total")["queue"]) for app in (alone, joined)}
    assert routed[alone] == routed[joined]


def test_chain_chord_schedule_and_results_of_an_app_are_what_they_were_and_dockets_runs_are_done(shop: Shop) -> None:
    alone = make_shop(shop.broker.url(), shop.database_url, with_docket=False)
    shop.worker("old", queues="mail,reports")
    beat = shop.beat("old-beat")
    before = shop.behaviour(alone, "old")
    eventually(lambda: shop.rows(NIGHTS) >= [(2,)])
    beat.stop()

    shop.added = True
    joined = make_shop(shop.broker.url(), shop.database_url, with_docket=True)
    docket = Docket.of(joined)
    assert docket is not None
    shop.worker("new", queues="mail,reports,docket")
    (nights,) = shop.rows(NIGHTS)[0]
    shop.beat("new-beat")
    ref = docket.save_graph(line("s1", "s2"))
    runs = docket.start_runs(ref, [None] * 10)
    during = shop.behaviour(joined, "old")
    assert all(docket.await_run(run.id, timeout=PATIENCE).status is RunStatus.DONE for run in runs)
    eventually(lambda: shop.rows(NIGHTS)[0][0] >= nights + 2)
    assert during == before
    assert before.chain == 15
    assert before.chord == 90
    assert before.queues == {"plain": "mail", "routed": "reports"}
    assert "docket_celery" not in shop.log_of("old")
    keys = eventually(lambda: joined.backend.client.keys("celery-task-meta-*"))
    assert all(json.loads(joined.backend.get(key)).get("name", "").startswith("proj.shop_tasks.") for key in keys)
    shop.assert_invariants()
