-- Claims: handing runs out, redeeming, keeping alive, giving back. None of these reads a run's document, except
-- redemption, which returns it.
--
-- `now` pins the clock for tests; otherwise clock_timestamp() rather than now(), since a statement may have waited for a
-- lock or run inside a longer transaction.

-- name: claim_gate
-- A nudge waits here for a running scan; then it claims in a second statement, whose snapshot sees what that scan took.
SELECT id FROM {schema}.dispatch WHERE id = 1 FOR UPDATE;

-- name: claim_due
WITH
clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::timestamptz, clock_timestamp()) AS now
),
-- Only a tick is turned away. A gate row that changed since the snapshot is locked in its newest version, so the counter
-- differs from the one the snapshot shows: another scan has ended in between, and its claims are not in our counts.
gate AS MATERIALIZED (
    SELECT d.id
    FROM {schema}.dispatch d
    WHERE %(gate)s::text = 'tick'
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
    SELECT %(gate)s::text <> 'tick' OR EXISTS (SELECT FROM gate) AS yes
),
marked AS (
    UPDATE {schema}.dispatch d
    SET last_scan_at = (SELECT now FROM clock), scans = d.scans + 1
    WHERE d.id = 1 AND (%(gate)s::text = 'nudge' OR d.id IN (SELECT id FROM gate))
),
wanted AS MATERIALIZED (
    SELECT CASE
        WHEN NOT (SELECT yes FROM entered) THEN 0
        WHEN %(gate)s::text = 'open' THEN %(limit)s::bigint
        ELSE greatest(0, least(
            %(limit)s::bigint,
            coalesce(%(slots)s::bigint, greatest(1, (
                SELECT sum(w.slots) FROM {schema}.worker_slots w WHERE w.expires_at > (SELECT now FROM clock)
            )))
            - (
                SELECT count(*) FROM {schema}.runs r
                WHERE r.status = 'running' AND r.poisoned_at IS NULL
                  AND r.claimed_at >= (SELECT now FROM clock) - %(ttl)s::interval
            )
        ))
    END::bigint AS count
),
-- Each class comes from its own partial index, in the order of that index.
ready AS MATERIALIZED (
    SELECT r.id, 'ready' AS class, r.wake_at AS eligible_at, r.claim_attempts, false AS unredeemed
    FROM {schema}.runs r
    WHERE r.status = 'running' AND r.poisoned_at IS NULL AND r.wake_at <= (SELECT now FROM clock)
    ORDER BY r.wake_at, r.id
    LIMIT (SELECT count FROM wanted)
    FOR UPDATE SKIP LOCKED
),
expired AS MATERIALIZED (
    SELECT r.id, 'expired' AS class, r.claimed_at + %(ttl)s::interval AS eligible_at, r.claim_attempts,
           NOT r.redeemed AS unredeemed
    FROM {schema}.runs r
    WHERE r.status = 'running' AND r.poisoned_at IS NULL
      AND r.claimed_at < (SELECT now FROM clock) - %(ttl)s::interval
    ORDER BY r.claimed_at, r.id
    LIMIT (SELECT count FROM wanted)
    FOR UPDATE SKIP LOCKED
),
ranked AS (
    SELECT c.*, row_number() OVER (PARTITION BY c.class ORDER BY c.eligible_at, c.id) AS place
    FROM (SELECT * FROM ready UNION ALL SELECT * FROM expired) c
),
chosen AS MATERIALIZED (
    SELECT c.id, c.class, c.eligible_at, c.unredeemed,
           c.claim_attempts >= %(max_attempts)s::bigint AND NOT c.unredeemed AS exhausted,
           c.unredeemed AND %(delivery)s::text = 'lease' AS again
    FROM ranked c
    -- From two on each class gets its first; a single one goes to the preferred class, or to the longest eligible.
    ORDER BY
        CASE
            WHEN (SELECT count FROM wanted) >= 2 THEN c.place > 1
            ELSE c.class <> coalesce(%(preference)s::text, c.class)
        END,
        c.eligible_at, c.id
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
      -- Every row is locked by now. The conditions stand here again so that no outcome rests on an older version; inside
      -- CASE, so that they do not tempt the planner to walk the index of the whole backlog instead of the few ids.
      AND CASE
          WHEN r.status = 'running' AND r.poisoned_at IS NULL
          THEN r.wake_at <= (SELECT now FROM clock) OR r.claimed_at < (SELECT now FROM clock) - %(ttl)s::interval
          ELSE false
      END
    RETURNING r.id, r.tenant, r.graph_id, r.graph_hash, r.checkpoint_seq, r.claim_token, r.redeemed,
              r.claim_attempts, c.class, c.unredeemed, c.exhausted, c.eligible_at
)
SELECT clock.now, entered.yes AS scanned,
       (
           SELECT r.wake_at FROM {schema}.runs r
           WHERE r.status = 'running' AND r.poisoned_at IS NULL
             AND r.wake_at > clock.now AND r.wake_at <= clock.now + interval '1 hour'
           ORDER BY r.wake_at LIMIT 1
       ) AS next_wake_at,
       taken.*
FROM clock CROSS JOIN entered LEFT JOIN taken ON true
ORDER BY taken.eligible_at, taken.id;

-- name: redeem_claim
-- The fields are read under the snapshot of the statement, the row in its newest version; they belong together because
-- both carry the lease's sequence: any transition between them would have moved it.
WITH hit AS (
    UPDATE {schema}.runs r
    SET claim_token = %(token)s::text,
        -- A repeat after a lost reply finds the chosen token and counts nothing.
        claimed_at = CASE
            WHEN r.claim_token = %(token)s::text THEN r.claimed_at
            ELSE greatest(r.claimed_at, coalesce(%(now)s::timestamptz, clock_timestamp()))
        END,
        claim_attempts = r.claim_attempts + (NOT r.redeemed)::int,
        redeemed = true
    WHERE r.id = %(id)s::text AND r.status = 'running' AND r.poisoned_at IS NULL
      AND r.checkpoint_seq = %(checkpoint_seq)s::bigint
      AND r.claim_token IN (%(offered)s::text, %(token)s::text)
    RETURNING r.*, coalesce(%(now)s::timestamptz, clock_timestamp()) AS now
)
SELECT r.id, r.graph_id, r.graph_hash, r.status, r.step, r.checkpoint_seq, r.event_seq,
       r.state::text AS state, r.started_at, r.updated_at, r.finished_at, r.claimed_at, r.claim_attempts,
       r.inbox_seq, r.now,
       field_names, field_values, chunk_names, chunk_items
FROM hit r
{gathered};

-- name: refresh_claims
-- A row that a mutation holds is left for the next round, so that it cannot keep the others from being renewed. Rows are
-- locked in the order of their ids: renewals of overlapping sets cannot deadlock.
WITH held AS (
    SELECT r.id
    FROM {schema}.runs r
    JOIN unnest(%(ids)s::text[], %(tokens)s::text[]) AS mine (id, token) ON mine.id = r.id
    WHERE r.claim_token = mine.token
    ORDER BY r.id
    FOR UPDATE OF r SKIP LOCKED
)
UPDATE {schema}.runs r
SET claimed_at = greatest(r.claimed_at, coalesce(%(now)s::timestamptz, clock_timestamp()))
FROM held
WHERE r.id = held.id
RETURNING r.id;

-- name: refresh_claim
UPDATE {schema}.runs r
SET claimed_at = greatest(r.claimed_at, coalesce(%(now)s::timestamptz, clock_timestamp()))
WHERE r.id = %(id)s::text AND r.claim_token = %(token)s::text
RETURNING r.id;

-- name: release_claim
UPDATE {schema}.runs r
SET claim_token = NULL, claimed_at = NULL, redeemed = false,
    wake_at = coalesce(%(now)s::timestamptz, clock_timestamp()) + %(delay)s::interval,
    -- Only a redeemed claim has counted an attempt.
    claim_attempts = greatest(0, r.claim_attempts - (%(uncounted)s::bool AND r.redeemed)::int)
WHERE r.id = %(id)s::text AND r.claim_token = %(token)s::text;

-- name: release_claims
WITH held AS (
    SELECT r.id
    FROM {schema}.runs r
    JOIN unnest(%(ids)s::text[], %(tokens)s::text[]) AS mine (id, token) ON mine.id = r.id
    WHERE r.claim_token = mine.token AND NOT r.redeemed
    ORDER BY r.id
    FOR UPDATE OF r
)
UPDATE {schema}.runs r
SET claim_token = NULL, claimed_at = NULL, wake_at = coalesce(%(now)s::timestamptz, clock_timestamp())
FROM held
WHERE r.id = held.id;

-- name: abandon_claim
UPDATE {schema}.runs r
SET claim_token = NULL, claimed_at = NULL, redeemed = false,
    claim_attempts = greatest(0, r.claim_attempts - r.redeemed::int),
    claim_abandons = r.claim_abandons + 1,
    abandon_reason = %(reason)s::text,
    wake_at = CASE WHEN NOT (%(poisoning)s::bool AND r.claim_abandons >= %(max_abandons)s::bigint) THEN
        coalesce(%(now)s::timestamptz, clock_timestamp()) + CASE
            WHEN %(base)s::float8 IS NULL THEN %(delay)s::interval
            -- Beyond 2^40 times the base every cap has been reached; the exponent must not overflow before.
            ELSE make_interval(secs => least(%(base)s::float8 * 2 ^ least(r.claim_abandons, 40), %(cap)s::float8))
        END
    END,
    poisoned_at = CASE WHEN %(poisoning)s::bool AND r.claim_abandons >= %(max_abandons)s::bigint
                       THEN coalesce(%(now)s::timestamptz, clock_timestamp()) END,
    poison_reason = CASE WHEN %(poisoning)s::bool AND r.claim_abandons >= %(max_abandons)s::bigint
                         THEN %(poison_reason)s::text END
WHERE r.id = %(id)s::text AND r.claim_token = %(token)s::text AND r.checkpoint_seq = %(checkpoint_seq)s::bigint
RETURNING r.poisoned_at IS NOT NULL AS poisoned;

-- name: retry_poisoned
UPDATE {schema}.runs r
SET poisoned_at = NULL, poison_reason = NULL,
    claim_attempts = 0, claim_abandons = 0, undelivered = 0, abandon_reason = NULL,
    wake_at = coalesce(%(now)s::timestamptz, clock_timestamp())
WHERE r.id = %(id)s::text AND (%(tenant)s::text IS NULL OR r.tenant = %(tenant)s::text) AND r.poisoned_at IS NOT NULL;
