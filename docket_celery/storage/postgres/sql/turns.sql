-- Scans in which tenants take turns. Their frame is in scans.sql.

-- part: due_of_tenant
-- Up to d.depth: how many ready runs the tenant t.tenant has.
(
    SELECT count(*) FROM (
        (
            SELECT FROM {schema}.runs r
            WHERE hashtext(r.tenant) = hashtext(t.tenant) AND r.tenant = t.tenant AND r.queue = 0
              AND r.wake_at BETWEEN (SELECT at FROM first_ready) AND (SELECT now FROM clock)
            ORDER BY r.wake_at, r.id LIMIT d.depth
        )
        UNION ALL
        (
            SELECT FROM {schema}.runs r
            WHERE hashtext(r.tenant) = hashtext(t.tenant) AND r.tenant = t.tenant AND r.queue = 1
              AND r.wake_at BETWEEN (SELECT at FROM first_ready) AND (SELECT now FROM clock)
            ORDER BY r.wake_at, r.id LIMIT d.depth
        )
        LIMIT d.depth
    ) due
)

-- name: claim_due_by_tenant
-- Tenants take turns. When few runs are due, their owners are all there are. Otherwise the index is asked for one tenant
-- after the other, from a random one on, and for a bounded number of them: as many as outcomes are wanted, at least 32. Where
-- most of these only sleep, the owners of the longest due runs join them, so that no slot stays free while work is due.
WITH RECURSIVE
{admission},
-- No wake before this one is alive: its index entries need no look at their rows, however many an old snapshot keeps.
first_ready AS MATERIALIZED (
    SELECT coalesce(%(ready_from)s::timestamptz, (
        SELECT r.wake_at FROM {schema}.runs r
        WHERE r.status = 'running' AND r.poisoned_at IS NULL AND r.wake_at <= (SELECT now FROM clock)
        ORDER BY r.wake_at, r.id
        LIMIT (SELECT least(count, 1) FROM wanted)
    )) AS at
),
-- From the new end, where an old snapshot leaves the fewest dead entries between the live ones.
newly_due AS MATERIALIZED (
    SELECT r.tenant
    FROM {schema}.runs r
    WHERE r.status = 'running' AND r.poisoned_at IS NULL
      AND r.wake_at BETWEEN (SELECT at FROM first_ready) AND (SELECT now FROM clock)
    ORDER BY r.wake_at DESC, r.id DESC
    LIMIT CASE WHEN (SELECT count FROM wanted) > 0 THEN 64 ELSE 0 END
),
bounds AS MATERIALIZED (
    SELECT (SELECT count(*) FROM newly_due) = 64 AS many_due,
           greatest((SELECT count FROM wanted), 32) AS hops, greatest((SELECT count FROM wanted), 16) AS enough,
           floor(f.scaled)::bigint - 2147483648 AS pivot, %(fraction)s::float8 AS fraction,
           -- What is left of the fraction once it has chosen the pivot.
           f.scaled - floor(f.scaled) AS rest
    FROM (SELECT %(fraction)s::float8 * 4294967296 AS scaled) f
),
met (hash, tenant, active, found, hop, lap) AS (
    SELECT pivot - 1, '' COLLATE "C", false, 0, 0, 0 FROM bounds WHERE many_due
    UNION ALL
    SELECT next.hash, next.tenant, next.active, m.found + next.active::int, m.hop + 1, next.lap
    FROM met m CROSS JOIN bounds CROSS JOIN LATERAL (
        SELECT n.hash, n.tenant, n.lap,
               -- Its first entry tells, unless that is a run in progress which sleeps.
               CASE
                   WHEN n.wake_at <= (SELECT now FROM clock) THEN true
                   WHEN n.queue = 0 THEN EXISTS (
                       SELECT FROM {schema}.runs r
                       WHERE hashtext(r.tenant) = n.hash AND r.tenant = n.tenant AND r.queue = 1
                         AND r.wake_at BETWEEN (SELECT at FROM first_ready) AND (SELECT now FROM clock)
                   )
                   ELSE false
               END AS active
        FROM (
            (
                SELECT hashtext(r.tenant)::bigint AS hash, r.tenant, r.queue, r.wake_at, m.lap
                FROM {schema}.runs r
                WHERE (hashtext(r.tenant), r.tenant) > (m.hash, m.tenant)
                  AND r.wake_at >= (SELECT at FROM first_ready)
                  AND hashtext(r.tenant) < CASE m.lap WHEN 0 THEN 2147483648 ELSE bounds.pivot END
                ORDER BY hashtext(r.tenant), r.tenant, r.queue, r.wake_at, r.id
                LIMIT 1
            )
            UNION ALL
            -- Beyond the last one comes the first.
            (
                SELECT hashtext(r.tenant)::bigint, r.tenant, r.queue, r.wake_at, 1
                FROM {schema}.runs r
                WHERE m.lap = 0 AND hashtext(r.tenant) < bounds.pivot
                  AND r.wake_at >= (SELECT at FROM first_ready)
                ORDER BY hashtext(r.tenant), r.tenant, r.queue, r.wake_at, r.id
                LIMIT 1
            )
            LIMIT 1
        ) n
    ) next
    WHERE m.found < bounds.enough AND m.hop < bounds.hops
),
-- With too few finds in all the hops, the longest due speak for themselves.
longest_due AS MATERIALIZED (
    SELECT r.tenant
    FROM {schema}.runs r
    WHERE r.status = 'running' AND r.poisoned_at IS NULL
      AND r.wake_at BETWEEN (SELECT at FROM first_ready) AND (SELECT now FROM clock)
    ORDER BY r.wake_at, r.id
    LIMIT CASE
        WHEN (SELECT max(found) < (SELECT count FROM wanted) AND max(hop) = (SELECT hops FROM bounds) FROM met) THEN 64
        ELSE 0
    END
),
active AS MATERIALIZED (
    SELECT a.tenant, min(a.hop) AS hop
    FROM (
        SELECT tenant, hop FROM met WHERE active
        UNION ALL
        SELECT d.tenant, b.hops + 1 FROM bounds b CROSS JOIN (
            SELECT n.tenant FROM newly_due n WHERE NOT (SELECT many_due FROM bounds)
            UNION ALL
            SELECT l.tenant FROM longest_due l
        ) d
    ) a
    GROUP BY a.tenant
),
ring AS MATERIALIZED (
    SELECT a.tenant, row_number() OVER (ORDER BY a.number <= a.skipped, a.number) AS turn
    FROM (
        SELECT a.tenant, row_number() OVER (ORDER BY a.hop, a.tenant) AS number,
               floor(CASE WHEN bounds.many_due THEN bounds.rest ELSE bounds.fraction END * count(*) OVER ()) AS skipped
        FROM active a CROSS JOIN bounds
    ) a
),
-- Who has a turn: the first of them with room below the cap.
turns AS MATERIALIZED (
    SELECT t.tenant, t.turn, t.room
    FROM (
        SELECT ring.tenant, ring.turn, CASE
            WHEN %(cap)s::bigint IS NULL THEN (SELECT count FROM wanted)
            ELSE least((SELECT count FROM wanted), %(cap)s::bigint - (
                SELECT count(*) FROM (
                    SELECT FROM {schema}.runs r
                    WHERE r.status = 'running' AND r.poisoned_at IS NULL AND r.wake_at IS NULL
                      AND r.tenant = ring.tenant
                    LIMIT %(cap)s::bigint
                ) held
            ))
        END AS room
        FROM ring
    ) t
    WHERE t.room > 0
    ORDER BY t.turn
    LIMIT (SELECT count FROM wanted)
),
-- How many ready runs each can have: one when there are enough tenants; otherwise a first look at twice an even share,
-- and a full one where that was not enough.
looked AS MATERIALIZED (
    SELECT t.tenant, t.turn, t.room, d.depth, {due_of_tenant} AS due
    FROM turns t CROSS JOIN LATERAL (
        SELECT CASE
            WHEN even.share <= 1 THEN 1
            ELSE least(t.room, 2 * even.share)
        END AS depth
        FROM (SELECT ((SELECT count FROM wanted) - 1) / (SELECT count(*) FROM turns) + 1 AS share) even
    ) d
),
ready_ahead AS MATERIALIZED (
    SELECT t.tenant, t.turn, CASE
        WHEN t.due < t.depth OR t.depth = t.room OR (SELECT sum(due) FROM looked) >= (SELECT count FROM wanted)
        THEN t.due ELSE {due_of_tenant}
    END AS due
    FROM looked t CROSS JOIN LATERAL (SELECT t.room AS depth) d
),
ready_count AS MATERIALIZED (
    SELECT least(coalesce(sum(due), 0), (SELECT count FROM wanted))::bigint AS count FROM ready_ahead
),
expired_count AS MATERIALIZED (
    SELECT count(*) AS count FROM (
        SELECT FROM {schema}.runs r
        WHERE r.status = 'running' AND r.poisoned_at IS NULL
          AND r.claimed_at < (SELECT now FROM clock) - %(ttl)s::interval
          AND r.claimed_at >= (SELECT at FROM first_claim)
        ORDER BY r.claimed_at, r.id
        LIMIT (SELECT count FROM wanted)
    ) e
),
share AS MATERIALIZED (
    SELECT least(e.count, CASE
        WHEN w.count = 1 THEN (%(preference)s::text IS DISTINCT FROM 'ready' OR r.count = 0)::int
        ELSE greatest(w.count / 2, w.count - r.count)
    END) AS expired
    FROM wanted w CROSS JOIN ready_count r CROSS JOIN expired_count e
),
{expired},
quotas AS MATERIALIZED (
    SELECT p.tenant, count(*) AS quota
    FROM (
        SELECT a.tenant
        FROM ready_ahead a CROSS JOIN LATERAL generate_series(1, a.due) AS place
        ORDER BY place, a.turn
        LIMIT (SELECT count FROM wanted) - (SELECT count(*) FROM expired)
    ) p
    GROUP BY p.tenant
),
-- A cap is counted by one scan at a time. A tenant's row that changed since the snapshot is locked in its newest version,
-- and the counter differs: another scan's claims are not in our counts. That turn is passed by. Where there is no row yet,
-- whoever inserts it is that one scan.
known AS MATERIALIZED (
    SELECT g.tenant
    FROM {schema}.tenant_turns g
    WHERE %(cap)s::bigint IS NOT NULL AND g.tenant IN (SELECT tenant FROM quotas)
      AND g.scans = (SELECT seen.scans FROM {schema}.tenant_turns seen WHERE seen.tenant = g.tenant)
    FOR UPDATE SKIP LOCKED
),
counted AS (
    UPDATE {schema}.tenant_turns g SET scans = g.scans + 1
    WHERE g.tenant IN (SELECT tenant FROM known)
),
new AS (
    INSERT INTO {schema}.tenant_turns (tenant)
    SELECT q.tenant FROM quotas q
    WHERE %(cap)s::bigint IS NOT NULL
      AND NOT EXISTS (SELECT FROM {schema}.tenant_turns g WHERE g.tenant = q.tenant)
    ORDER BY q.tenant
    ON CONFLICT DO NOTHING
    RETURNING tenant
),
counting AS MATERIALIZED (
    SELECT tenant FROM known UNION ALL SELECT tenant FROM new
),
open_quotas AS MATERIALIZED (
    SELECT q.tenant, q.quota FROM quotas q
    WHERE %(cap)s::bigint IS NULL OR q.tenant IN (SELECT tenant FROM counting)
),
resumed AS MATERIALIZED (
    SELECT r.*
    FROM open_quotas q CROSS JOIN LATERAL (
        SELECT r.id, 'ready' AS class, r.wake_at AS eligible_at, r.claim_attempts, false AS unredeemed, r.tenant
        FROM {schema}.runs r
        WHERE hashtext(r.tenant) = hashtext(q.tenant) AND r.tenant = q.tenant AND r.queue = 0
          AND r.wake_at BETWEEN (SELECT at FROM first_ready) AND (SELECT now FROM clock)
        ORDER BY r.wake_at, r.id
        LIMIT q.quota
        FOR UPDATE SKIP LOCKED
    ) r
),
begun AS MATERIALIZED (
    SELECT r.*
    FROM open_quotas q CROSS JOIN LATERAL (
        SELECT r.id, 'ready' AS class, r.wake_at AS eligible_at, r.claim_attempts, false AS unredeemed
        FROM {schema}.runs r
        WHERE hashtext(r.tenant) = hashtext(q.tenant) AND r.tenant = q.tenant AND r.queue = 1
          AND r.wake_at BETWEEN (SELECT at FROM first_ready) AND (SELECT now FROM clock)
        ORDER BY r.wake_at, r.id
        LIMIT q.quota - (SELECT count(*) FROM resumed s WHERE s.tenant = q.tenant)
        FOR UPDATE SKIP LOCKED
    ) r
),
ready AS MATERIALIZED (
    SELECT id, class, eligible_at, claim_attempts, unredeemed FROM resumed UNION ALL SELECT * FROM begun
),
{filled},
shortfall AS (
    SELECT (SELECT count(*) FROM locked) < (SELECT coalesce(sum(quota), 0) FROM quotas) AS passed_by
),
{outcomes};
