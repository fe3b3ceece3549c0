-- Scans: handing due runs out, the longest eligible first; and the parts that every scan is made of. None of these reads a
-- run's document.
--
-- `now` pins the clock for tests; otherwise clock_timestamp() rather than now(), since a statement may have waited for a
-- lock or run inside a longer transaction.
--
-- Some parameters stand in a SELECT of their own, which hides them from the planner: beside a long backlog a plan that is cut
-- to them promises so much that the server would make a new one for each execution, and that costs more than the scan.

-- name: claim_gate
-- A nudge waits here for a running scan; then it claims in a second statement, whose snapshot sees what that scan took.
WITH {bounds}
SELECT d.id, b.lock, b.idle FROM bounds b CROSS JOIN {schema}.dispatch d WHERE d.id = 1
FOR UPDATE OF d;

-- part: slots
-- None registered counts as one.
slots AS MATERIALIZED (
    SELECT coalesce((SELECT %(slots)s::bigint), greatest(1, (
        SELECT sum(w.slots) FROM {schema}.worker_slots w WHERE w.expires_at > (SELECT now FROM clock)
    ))) AS count
)

-- part: admission
-- When it is, whether this scan is let in, and how many outcomes it may have.
clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::timestamptz, clock_timestamp()) AS now, {unflushed}
),
-- Only a tick is turned away. A gate row that changed since the snapshot is locked in its newest version, so the counter
-- differs from the one the snapshot shows: another scan has ended in between, and its claims are not in our counts.
gate AS MATERIALIZED (
    SELECT d.id
    FROM {schema}.dispatch d
    WHERE (SELECT %(gate)s::text) = 'tick'
      AND d.id = 1
      AND d.scans = (SELECT seen.scans FROM {schema}.dispatch seen WHERE seen.id = 1)
      AND (
          d.last_scan_at IS NULL
          -- Beat's own jitter must not turn every second tick away.
          OR d.last_scan_at <= (SELECT now FROM clock) - %(interval)s::interval * 0.95
          -- A scan from the future was written under a clock that has since been set back.
          OR d.last_scan_at > (SELECT now FROM clock) + %(interval)s::interval
      )
    FOR UPDATE SKIP LOCKED
),
entered AS MATERIALIZED (
    SELECT (SELECT %(gate)s::text) <> 'tick' OR EXISTS (SELECT FROM gate) AS yes
),
marked AS (
    UPDATE {schema}.dispatch d
    SET last_scan_at = (SELECT now FROM clock), scans = d.scans + 1
    WHERE d.id = 1 AND ((SELECT %(gate)s::text) = 'nudge' OR d.id IN (SELECT id FROM gate))
),
-- The oldest claim there is. Below it there are dead index entries at most, and an old snapshot somewhere can keep very many
-- of them: they are walked over here, once, and from `claimed_from` on only, if the caller has looked before.
first_claim AS MATERIALIZED (
    SELECT min(first.claimed_at) AS at FROM (
        SELECT r.claimed_at FROM {schema}.runs r
        WHERE r.status = 'running' AND r.poisoned_at IS NULL
          AND r.claimed_at >= coalesce((SELECT %(claimed_from)s::timestamptz), '-infinity')
        ORDER BY r.claimed_at, r.id
        LIMIT (SELECT yes::int FROM entered)
    ) first
),
{slots},
wanted AS MATERIALIZED (
    SELECT CASE
        WHEN NOT (SELECT yes FROM entered) THEN 0
        WHEN (SELECT %(gate)s::text) = 'open' THEN %(limit)s::bigint
        ELSE greatest(0, least(
            %(limit)s::bigint,
            (SELECT count FROM slots) - (
                -- Once every slot is taken it does not matter by how many more.
                SELECT count(*) FROM (
                    SELECT FROM {schema}.runs r
                    WHERE r.status = 'running' AND r.poisoned_at IS NULL
                      AND r.claimed_at >= greatest(
                          (SELECT now FROM clock) - %(ttl)s::interval,
                          -- Where there is none at all, nothing is counted.
                          coalesce((SELECT at FROM first_claim), 'infinity')
                      )
                    ORDER BY r.claimed_at, r.id
                    LIMIT (SELECT count FROM slots)
                ) held
            )
        ))
    END::bigint AS count
)

-- part: expired
-- Expired claims, up to the share of their class.
expired AS MATERIALIZED (
    SELECT r.id, 'expired' AS class, r.claimed_at + %(ttl)s::interval AS eligible_at, r.claim_attempts,
           NOT r.redeemed AS unredeemed
    FROM {schema}.runs r
    WHERE r.status = 'running' AND r.poisoned_at IS NULL
      AND r.claimed_at < (SELECT now FROM clock) - %(ttl)s::interval
      AND r.claimed_at >= (SELECT at FROM first_claim)
    ORDER BY r.claimed_at, r.id
    LIMIT (SELECT expired FROM share)
    FOR UPDATE SKIP LOCKED
)

-- part: filled
-- And more of them where rivals hold what was to be the other class's.
expired_besides AS MATERIALIZED (
    SELECT r.id, 'expired' AS class, r.claimed_at + %(ttl)s::interval AS eligible_at, r.claim_attempts,
           NOT r.redeemed AS unredeemed
    FROM {schema}.runs r
    WHERE r.status = 'running' AND r.poisoned_at IS NULL
      AND r.claimed_at < (SELECT now FROM clock) - %(ttl)s::interval
      AND r.claimed_at >= (SELECT at FROM first_claim)
      AND r.id NOT IN (SELECT id FROM expired)
    ORDER BY r.claimed_at, r.id
    LIMIT (SELECT count FROM wanted) - (SELECT count(*) FROM expired) - (SELECT count(*) FROM ready)
    FOR UPDATE SKIP LOCKED
),
locked AS MATERIALIZED (
    SELECT * FROM expired UNION ALL SELECT * FROM ready UNION ALL SELECT * FROM expired_besides
    LIMIT (SELECT count FROM wanted)
)

-- part: next_wake
-- So that whoever scans can be there in time.
(
    SELECT r.wake_at FROM {schema}.runs r
    WHERE r.status = 'running' AND r.poisoned_at IS NULL
      AND r.wake_at > (SELECT now FROM clock) AND r.wake_at <= (SELECT now FROM clock) + interval '1 hour'
    ORDER BY r.wake_at LIMIT 1
) AS next_wake_at

-- part: outcomes
-- What becomes of the rows that are locked by now, and the answer: one row for each, or one that only tells the time.
chosen AS MATERIALIZED (
    SELECT l.id, l.class, l.eligible_at, l.unredeemed,
           l.claim_attempts >= %(max_attempts)s::bigint AND NOT l.unredeemed AS exhausted,
           l.unredeemed AND %(delivery)s::text = 'lease' AS again
    FROM locked l
    -- This limit and the one of `locked` cut nothing. No plan knows them beforehand, so that the planner expects one row and
    -- looks each up by the primary key: a plan that was made while the table was empty would else walk all of it later.
    LIMIT (SELECT count FROM wanted)
),
taken AS (
    UPDATE {schema}.runs r
    SET wake_at = NULL,
        claim_token = CASE
            WHEN c.exhausted THEN NULL
            WHEN c.again THEN r.claim_token
            ELSE replace(gen_random_uuid()::text, '-', '')
        END,
        claimed_at = CASE WHEN NOT c.exhausted THEN (SELECT now FROM clock) END,
        redeemed = NOT c.exhausted AND %(delivery)s::text = 'direct',
        claim_attempts = r.claim_attempts + (NOT c.exhausted AND %(delivery)s::text = 'direct')::int,
        undelivered = r.undelivered + c.again::int,
        poisoned_at = CASE WHEN c.exhausted THEN (SELECT now FROM clock) END,
        poison_reason = CASE WHEN c.exhausted THEN %(poison_reason)s::text END
    FROM chosen c
    WHERE r.id = c.id
      -- The ids as an array: whatever the planner believes to be due, it looks up these few by the primary key.
      AND r.id = ANY (ARRAY(SELECT id FROM chosen))
      -- Every row is locked by now. The conditions stand here again so that no outcome rests on an older version; inside
      -- CASE, so that they do not tempt the planner to walk the index of the whole backlog instead.
      AND CASE
          WHEN r.status = 'running' AND r.poisoned_at IS NULL
          THEN r.wake_at <= (SELECT now FROM clock) OR r.claimed_at < (SELECT now FROM clock) - %(ttl)s::interval
          ELSE false
      END
    RETURNING r.id, r.tenant, r.graph_id, r.graph_hash, r.checkpoint_seq, r.claim_token, r.redeemed,
              r.claim_attempts, c.class, c.unredeemed, c.exhausted, c.eligible_at
)
SELECT clock.now, entered.yes AS scanned, (SELECT passed_by FROM shortfall) AS passed_by, {next_wake},
       -- Before these two instants this scan knows of nothing alive.
       CASE WHEN (SELECT count FROM wanted) > 0 THEN coalesce((SELECT at FROM first_ready), clock.now) END AS ready_from,
       CASE WHEN entered.yes THEN coalesce((SELECT at FROM first_claim), clock.now) END AS claimed_from,
       taken.*
FROM clock CROSS JOIN entered LEFT JOIN taken ON true
ORDER BY taken.eligible_at, taken.id

-- name: claim_due
-- The longest eligible first. How many come from each class is decided from a look without locks, so that no more rows
-- are locked than are taken; rows that a rival holds are passed over, and what is missing then comes from the other class.
WITH
{admission},
ready_ahead AS MATERIALIZED (
    SELECT 'ready' AS class, r.wake_at AS eligible_at, r.id
    FROM {schema}.runs r
    WHERE r.status = 'running' AND r.poisoned_at IS NULL AND r.wake_at <= (SELECT now FROM clock)
      AND r.wake_at >= coalesce(%(ready_from)s::timestamptz, '-infinity')
    ORDER BY r.wake_at, r.id
    LIMIT (SELECT count FROM wanted)
),
first_ready AS MATERIALIZED (
    SELECT min(eligible_at) AS at FROM ready_ahead
),
expired_ahead AS MATERIALIZED (
    SELECT 'expired' AS class, r.claimed_at + %(ttl)s::interval AS eligible_at, r.id
    FROM {schema}.runs r
    WHERE r.status = 'running' AND r.poisoned_at IS NULL
      AND r.claimed_at < (SELECT now FROM clock) - %(ttl)s::interval
      AND r.claimed_at >= (SELECT at FROM first_claim)
    ORDER BY r.claimed_at, r.id
    LIMIT (SELECT count FROM wanted)
),
ahead AS (
    SELECT a.*, row_number() OVER (PARTITION BY a.class ORDER BY a.eligible_at, a.id) AS place
    FROM (SELECT * FROM ready_ahead UNION ALL SELECT * FROM expired_ahead) a
),
share AS MATERIALIZED (
    SELECT count(*) FILTER (WHERE first.class = 'expired') AS expired
    FROM (
        SELECT a.class FROM ahead a
        -- From two on each class gets its first; a single one goes to the preferred class, or to the longest eligible.
        ORDER BY
            CASE
                WHEN (SELECT count FROM wanted) >= 2 THEN a.place > 1
                ELSE a.class <> coalesce(%(preference)s::text, a.class)
            END,
            a.eligible_at, a.id
        LIMIT (SELECT count FROM wanted)
    ) first
),
{expired},
ready AS MATERIALIZED (
    SELECT r.id, 'ready' AS class, r.wake_at AS eligible_at, r.claim_attempts, false AS unredeemed
    FROM {schema}.runs r
    WHERE r.status = 'running' AND r.poisoned_at IS NULL AND r.wake_at <= (SELECT now FROM clock)
      -- Before the first that was seen there are dead entries at most, which need not be walked over twice.
      AND r.wake_at >= (SELECT at FROM first_ready)
    ORDER BY r.wake_at, r.id
    LIMIT (SELECT count FROM wanted) - (SELECT count(*) FROM expired)
    FOR UPDATE SKIP LOCKED
),
{filled},
shortfall AS (
    SELECT false AS passed_by
),
{outcomes};
