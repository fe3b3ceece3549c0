-- The fleet: what live workers have registered, and totals for health checks.

-- name: register_worker
WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::timestamptz, clock_timestamp()) AS now
),
-- Workers that died without taking their leave are forgotten after a day.
swept AS (
    DELETE FROM {schema}.worker_slots w
    WHERE w.worker IN (
        SELECT old.worker FROM {schema}.worker_slots old
        WHERE old.expires_at < (SELECT now FROM clock) - interval '1 day' AND old.worker <> %(worker)s::text
        FOR UPDATE SKIP LOCKED
    )
)
INSERT INTO {schema}.worker_slots (worker, slots, orphan_ttl, seen_at, expires_at)
SELECT %(worker)s::text, %(slots)s::bigint, %(orphan_ttl)s::interval, now, now + %(ttl)s::interval FROM clock
ON CONFLICT (worker) DO UPDATE
SET slots = excluded.slots, orphan_ttl = excluded.orphan_ttl, seen_at = excluded.seen_at, expires_at = excluded.expires_at;

-- name: unregister_worker
DELETE FROM {schema}.worker_slots WHERE worker = %(worker)s::text;

-- name: backlog
-- Counts stop at a limit, so that a health check of a long backlog stays cheap.
WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::timestamptz, clock_timestamp()) AS now
),
ready AS (
    SELECT count(*) AS count, min(wake_at) AS first FROM (
        SELECT r.wake_at FROM {schema}.runs r
        WHERE r.status = 'running' AND r.poisoned_at IS NULL AND r.wake_at <= (SELECT now FROM clock)
        ORDER BY r.wake_at, r.id LIMIT %(count_limit)s::bigint
    ) s
),
expired AS (
    SELECT count(*) AS count, min(claimed_at) + %(ttl)s::interval AS first FROM (
        SELECT r.claimed_at FROM {schema}.runs r
        WHERE r.status = 'running' AND r.poisoned_at IS NULL
          AND r.claimed_at < (SELECT now FROM clock) - %(ttl)s::interval
        ORDER BY r.claimed_at, r.id LIMIT %(count_limit)s::bigint
    ) s
),
claimed AS (
    SELECT count(*) AS count, count(*) FILTER (WHERE NOT redeemed) AS unredeemed,
           count(*) FILTER (WHERE NOT redeemed AND undelivered > 0) AS undelivered
    FROM (
        SELECT r.redeemed, r.undelivered FROM {schema}.runs r
        WHERE r.status = 'running' AND r.poisoned_at IS NULL
          AND r.claimed_at >= (SELECT now FROM clock) - %(ttl)s::interval
        ORDER BY r.claimed_at, r.id LIMIT %(count_limit)s::bigint
    ) s
),
poisoned AS (
    SELECT count(*) AS count FROM (
        SELECT FROM {schema}.runs r WHERE r.poisoned_at IS NOT NULL LIMIT %(count_limit)s::bigint
    ) s
),
workers AS (
    SELECT coalesce(array_agg(w.worker ORDER BY w.worker), '{}') AS names,
           coalesce(array_agg(w.slots ORDER BY w.worker), '{}') AS slots,
           coalesce(array_agg(w.orphan_ttl ORDER BY w.worker), '{}') AS orphan_ttls,
           coalesce(array_agg(w.seen_at ORDER BY w.worker), '{}') AS seen_at
    FROM {schema}.worker_slots w WHERE w.expires_at > (SELECT now FROM clock)
)
SELECT clock.now,
       least(ready.count + expired.count, %(count_limit)s::bigint) AS due,
       least(ready.first, expired.first) AS oldest_due_at,
       (SELECT r.wake_at FROM {schema}.runs r
        WHERE r.status = 'running' AND r.poisoned_at IS NULL AND r.wake_at > clock.now
        ORDER BY r.wake_at, r.id LIMIT 1) AS next_wake_at,
       claimed.count AS claimed, claimed.unredeemed, claimed.undelivered, poisoned.count AS poisoned,
       (SELECT d.last_scan_at FROM {schema}.dispatch d WHERE d.id = 1) AS last_scan_at,
       workers.names AS worker_names, workers.slots AS worker_slots,
       workers.orphan_ttls AS worker_orphan_ttls, workers.seen_at AS worker_seen_at
FROM clock CROSS JOIN ready CROSS JOIN expired CROSS JOIN claimed CROSS JOIN poisoned CROSS JOIN workers;
