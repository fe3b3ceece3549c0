-- Retention. Each statement is a transaction of its own, and holds its locks for as long as the server works on it: a
-- client that is frozen or killed meanwhile leaves nothing locked behind.
--
-- Passes exclude each other by an advisory lock of the transaction. What a pass takes is found along a partial index,
-- then locked in the order of the ids, leaving out what somebody else has locked, and judged again under the lock.
-- Lists of ids and places become arrays, so that no estimate can turn a small list into a walk over the whole table.

-- name: prune_runs
WITH gate AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock(%(lock)s::bigint) AS entered
),
clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::timestamptz, clock_timestamp()) - %(age)s::interval AS earliest
),
oldest AS MATERIALIZED (
    SELECT r.id, r.finished_at, r.event_seq
    FROM {schema}.runs r
    WHERE (SELECT entered FROM gate)
      AND r.finished_at IS NOT NULL AND r.finished_at < (SELECT earliest FROM clock)
      AND (%(tenant)s::text IS NULL OR r.tenant = %(tenant)s::text)
    ORDER BY r.finished_at, r.id
    LIMIT %(batch)s::bigint
),
-- What a run drags along is bounded too: the batch ends with the run that fills the bound.
weighed AS MATERIALIZED (
    SELECT o.id, sum(o.event_seq) OVER (ORDER BY o.finished_at, o.id) - o.event_seq < %(event_batch)s::bigint AS fits
    FROM oldest o
),
held AS MATERIALIZED (
    SELECT r.id
    FROM {schema}.runs r
    WHERE r.id = ANY (ARRAY(SELECT w.id FROM weighed w WHERE w.fits))
      AND r.finished_at < (SELECT earliest FROM clock) AND r.status IN ('done', 'failed', 'cancelled')
    ORDER BY r.id
    FOR UPDATE SKIP LOCKED
),
-- The rest of what belongs to a run goes by a trigger; its events are removed here to be counted.
events AS (
    DELETE FROM {schema}.run_events e WHERE e.run_id = ANY (ARRAY(SELECT id FROM held)) RETURNING 1
),
gone AS (
    DELETE FROM {schema}.runs r WHERE r.id = ANY (ARRAY(SELECT id FROM held)) RETURNING 1
),
counted AS (
    SELECT (SELECT count(*) FROM gone) AS removed, (SELECT count(*) FROM events) AS events
)
SELECT gate.entered, counted.removed, counted.events,
       -- A batch of which every row was locked is not worth another pass at once.
       counted.removed > 0 AND (
           (SELECT count(*) FROM weighed) = %(batch)s::bigint OR EXISTS (SELECT FROM weighed WHERE NOT fits)
       ) AS more
FROM gate CROSS JOIN counted;

-- name: prune_events
-- The prefix of each run's events that is older; what is left has no hole. `events_since` then moves to the first event
-- that stays: it never lies behind that one, so that the index leads to every run with something to remove.
WITH gate AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock(%(lock)s::bigint) AS entered
),
clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::timestamptz, clock_timestamp()) - %(age)s::interval AS earliest
),
oldest AS MATERIALIZED (
    SELECT r.id, r.events_since, r.event_seq
    FROM {schema}.runs r
    WHERE (SELECT entered FROM gate)
      AND r.finished_at IS NOT NULL AND r.events_since < (SELECT earliest FROM clock)
      AND (%(tenant)s::text IS NULL OR r.tenant = %(tenant)s::text)
    ORDER BY r.events_since, r.id
    LIMIT %(batch)s::bigint
),
weighed AS MATERIALIZED (
    SELECT o.id, sum(o.event_seq) OVER (ORDER BY o.events_since, o.id) - o.event_seq < %(event_batch)s::bigint AS fits
    FROM oldest o
),
held AS MATERIALIZED (
    SELECT r.id
    FROM {schema}.runs r
    WHERE r.id = ANY (ARRAY(SELECT w.id FROM weighed w WHERE w.fits))
      AND r.finished_at IS NOT NULL AND r.events_since < (SELECT earliest FROM clock)
    ORDER BY r.id
    FOR UPDATE SKIP LOCKED
),
-- Events are never updated, so that the place of each stays what this snapshot shows.
looked AS MATERIALIZED (
    SELECT h.id, e.place, e.seq,
           bool_or(e.at >= (SELECT earliest FROM clock)) OVER (PARTITION BY h.id ORDER BY e.seq) AS stays
    FROM held h
    CROSS JOIN LATERAL (
        SELECT s.ctid AS place, s.seq, s.at FROM {schema}.run_events s
        WHERE s.run_id = h.id ORDER BY s.seq LIMIT %(event_batch)s::bigint
    ) e
),
gone AS (
    DELETE FROM {schema}.run_events e WHERE e.ctid = ANY (ARRAY(SELECT place FROM looked WHERE NOT stays)) RETURNING 1
),
cut AS MATERIALIZED (
    SELECT h.id, coalesce(max(l.seq) FILTER (WHERE NOT l.stays), 0) AS last
    FROM held h LEFT JOIN looked l ON l.id = h.id
    GROUP BY h.id
),
moved AS (
    UPDATE {schema}.runs r
    SET events_since = (
        SELECT e.at FROM {schema}.run_events e
        WHERE e.run_id = r.id AND e.seq > (SELECT c.last FROM cut c WHERE c.id = r.id)
        ORDER BY e.seq LIMIT 1
    )
    WHERE r.id = ANY (ARRAY(SELECT id FROM held))
    RETURNING r.events_since < (SELECT earliest FROM clock) AS left_over
)
SELECT gate.entered, 0::bigint AS removed, (SELECT count(*) FROM gone) AS events,
       EXISTS (SELECT FROM held) AND (
           (SELECT count(*) FROM weighed) = %(batch)s::bigint
           OR EXISTS (SELECT FROM weighed WHERE NOT fits)
           OR EXISTS (SELECT FROM moved WHERE left_over)
       ) AS more
FROM gate;

-- name: prune_graphs
-- A version that a run has come to refer to since the snapshot makes the statement fail, by the foreign key.
WITH gate AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock(%(lock)s::bigint) AS entered
),
clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::timestamptz, clock_timestamp()) - %(age)s::interval AS earliest
),
held AS MATERIALIZED (
    SELECT v.ctid AS place
    FROM {schema}.graph_versions v
    WHERE (SELECT entered FROM gate)
      AND v.published_at < (SELECT earliest FROM clock)
      AND (%(tenant)s::text IS NULL OR v.tenant = %(tenant)s::text)
      AND EXISTS (
          SELECT FROM {schema}.graph_versions l
          WHERE l.tenant = v.tenant AND l.graph_id = v.graph_id
            AND (l.published_at, l.graph_hash) > (v.published_at, v.graph_hash)
      )
      AND NOT EXISTS (
          SELECT FROM {schema}.runs r
          WHERE r.tenant = v.tenant AND r.graph_id = v.graph_id AND r.graph_hash = v.graph_hash
      )
    ORDER BY v.tenant, v.graph_id, v.graph_hash
    LIMIT %(batch)s::bigint
    FOR UPDATE OF v SKIP LOCKED
),
gone AS (
    DELETE FROM {schema}.graph_versions v WHERE v.ctid = ANY (ARRAY(SELECT place FROM held)) RETURNING 1
)
SELECT gate.entered, (SELECT count(*) FROM gone) AS removed, 0::bigint AS events,
       (SELECT count(*) FROM gone) = %(batch)s::bigint AS more
FROM gate;

-- name: count_prunable
-- What all passes together would remove now. Versions count as unreferenced when only runs that go refer to them.
WITH clock AS MATERIALIZED (
    SELECT now - %(runs)s::interval AS runs, now - %(events)s::interval AS events, now - %(graphs)s::interval AS graphs
    FROM (SELECT coalesce(%(now)s::timestamptz, clock_timestamp()) AS now) c
)
SELECT
    (
        SELECT count(*) FROM {schema}.runs r
        WHERE r.finished_at < clock.runs AND (%(tenant)s::text IS NULL OR r.tenant = %(tenant)s::text)
    ) AS runs,
    (
        SELECT count(*)
        FROM {schema}.runs r
        CROSS JOIN LATERAL (
            SELECT coalesce(r.finished_at < clock.runs, false) AS goes, (
                SELECT min(k.seq) FROM {schema}.run_events k WHERE k.run_id = r.id AND k.at >= clock.events
            ) AS first_kept
        ) bound
        JOIN {schema}.run_events e ON e.run_id = r.id
        WHERE r.finished_at IS NOT NULL AND (%(tenant)s::text IS NULL OR r.tenant = %(tenant)s::text)
          AND (bound.goes OR (e.at < clock.events AND (bound.first_kept IS NULL OR e.seq < bound.first_kept)))
    ) AS events,
    (
        SELECT count(*) FROM {schema}.graph_versions v
        WHERE v.published_at < clock.graphs AND (%(tenant)s::text IS NULL OR v.tenant = %(tenant)s::text)
          AND EXISTS (
              SELECT FROM {schema}.graph_versions l
              WHERE l.tenant = v.tenant AND l.graph_id = v.graph_id
                AND (l.published_at, l.graph_hash) > (v.published_at, v.graph_hash)
          )
          AND NOT EXISTS (
              SELECT FROM {schema}.runs r
              WHERE r.tenant = v.tenant AND r.graph_id = v.graph_id AND r.graph_hash = v.graph_hash
                AND NOT coalesce(r.finished_at < clock.runs, false)
          )
    ) AS graphs
FROM clock;
