-- Claims: redeeming, keeping alive, giving back. Only a redemption reads a run's document, which it returns, and `read_values`
-- the large values that it left behind.
-- Handing runs out is in scans.sql and turns.sql.
--
-- `now` pins the clock for tests; otherwise clock_timestamp() rather than now(), since a statement may have waited for a
-- lock or run inside a longer transaction.

-- part: unflushed
-- For this transaction alone: it does not wait for the log to reach the disk. A claim that a crash of the server takes back
-- is a run that is due again, and whoever held it is refused. Its first commit flushes what came before it.
set_config('synchronous_commit', 'off', true) AS unflushed

-- part: queued
-- Back into its tenant's queue: with those in progress, or with those never begun.
queue = (r.checkpoint_seq = 1)::int

-- part: redeemed
-- What the holder of a claim needs to begin.
SELECT r.id, r.tenant, r.graph_id, r.graph_hash, r.status, r.step, r.checkpoint_seq, r.event_seq,
       r.state::text AS state, r.started_at, r.updated_at, r.finished_at, r.claim_token, r.claimed_at, r.redeemed,
       r.claim_attempts, r.inbox_seq, r.now,
       field_names, field_values, chunk_names, chunk_items

-- part: largest_read
-- Bytes of a value, or of all chunks of a log, beyond which it is left where it is. To fetch and decode a large value costs
-- more than the statement that reads it if it is needed after all.
16384

-- part: gathered
-- The values of one run as `gathered_whole` gives them, but NULL for a large value, and one NULL for the chunks of a large log.
-- The stored size is known without fetching what lies out of line. A value that is stored small only because it compresses
-- well is fetched to be measured; chunks count by their stored size.
CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(f.name ORDER BY f.name), '{}') AS field_names,
           coalesce(array_agg(
               CASE WHEN pg_column_size(f.value) <= {largest_read} AND octet_length(f.value::text) <= {largest_read}
                    THEN f.value::text END
               ORDER BY f.name
           ), '{}') AS field_values
    FROM {schema}.run_fields f WHERE f.run_id = r.id
) fields
CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(log.name ORDER BY log.name, c.seq), '{}') AS chunk_names,
           coalesce(array_agg(c.items::text ORDER BY log.name, c.seq), '{}') AS chunk_items
    FROM (
        SELECT c.name, sum(pg_column_size(c.items)) AS size
        FROM {schema}.run_chunks c WHERE c.run_id = r.id
        GROUP BY c.name
    ) log
    LEFT JOIN {schema}.run_chunks c ON c.run_id = r.id AND c.name = log.name AND log.size <= {largest_read}
) chunks

-- name: read_values
-- One statement, so one snapshot: the values belong to the sequence that it finds. The names are hidden from the planner: see
-- scans.sql.
SELECT n.name,
       (SELECT f.value::text FROM {schema}.run_fields f WHERE f.run_id = r.id AND f.name = n.name) AS value,
       ARRAY (
           SELECT c.items::text FROM {schema}.run_chunks c WHERE c.run_id = r.id AND c.name = n.name ORDER BY c.seq
       ) AS chunks
FROM {schema}.runs r, unnest((SELECT %(names)s::text)::text[]) AS n (name)
WHERE r.id = %(id)s::text
  -- As one condition, so that the primary key is the only way to the row, whatever the statistics say.
  AND (r.claim_token = %(token)s::text AND r.checkpoint_seq = %(checkpoint_seq)s::bigint) IS TRUE;

-- name: redeem_claim
-- The fields are read under the snapshot of the statement, the row in its newest version; they belong together because
-- both carry the lease's sequence: any transition between them would have moved it.
WITH hit AS (
    UPDATE {schema}.runs r
    SET claim_token = %(token)s::text,
        -- Left as it is while it is young, as by a commit that keeps its claim: the update is HOT then.
        claimed_at = CASE
            WHEN r.claim_token <> %(token)s::text
             AND r.claimed_at < coalesce(%(now)s::timestamptz, clock_timestamp()) - %(refresh_after)s::interval
            THEN coalesce(%(now)s::timestamptz, clock_timestamp())
            ELSE r.claimed_at
        END,
        -- A repeat after a lost reply finds the chosen token and counts nothing.
        claim_attempts = r.claim_attempts + (NOT r.redeemed)::int,
        redeemed = true
    WHERE r.id = %(id)s::text
      -- As one condition, so that the primary key is the only way to the row, whatever the statistics say.
      AND (
          r.status = 'running' AND r.poisoned_at IS NULL AND r.checkpoint_seq = %(checkpoint_seq)s::bigint
          AND r.claim_token IN (%(offered)s::text, %(token)s::text)
      ) IS TRUE
    RETURNING r.*, coalesce(%(now)s::timestamptz, clock_timestamp()) AS now, {unflushed}
)
{redeemed}
FROM hit r
{gathered};

-- name: redeem_claims
-- Leases of several vehicles, each under its own fence. A row that somebody else holds is passed by: only its own redemption
-- waits for it. The limit is there for the planner: see `mine`.
WITH due AS MATERIALIZED (
    SELECT r.id, l.token, l.checkpoint_seq, l.refresh_after
    FROM (
        SELECT * FROM unnest(
            %(ids)s::text[], %(offered)s::text[], %(tokens)s::text[], %(checkpoint_seqs)s::bigint[],
            %(refresh_afters)s::interval[]
        ) AS l (id, offered, token, checkpoint_seq, refresh_after)
        LIMIT %(count)s::bigint
    ) l
    JOIN {schema}.runs r ON r.id = l.id
    WHERE (
        r.status = 'running' AND r.poisoned_at IS NULL AND r.checkpoint_seq = l.checkpoint_seq
        AND r.claim_token IN (l.offered, l.token)
    ) IS TRUE
    FOR UPDATE OF r SKIP LOCKED
),
hit AS (
    UPDATE {schema}.runs r
    SET claim_token = l.token,
        claimed_at = CASE
            WHEN r.claim_token <> l.token
             AND r.claimed_at < coalesce(%(now)s::timestamptz, clock_timestamp()) - l.refresh_after
            THEN coalesce(%(now)s::timestamptz, clock_timestamp())
            ELSE r.claimed_at
        END,
        claim_attempts = r.claim_attempts + (NOT r.redeemed)::int,
        redeemed = true
    FROM due l
    -- Every row is locked by now. The fence stands here again so that no outcome rests on an older version.
    WHERE r.id = l.id AND (r.checkpoint_seq = l.checkpoint_seq) IS TRUE
    RETURNING r.*, coalesce(%(now)s::timestamptz, clock_timestamp()) AS now, {unflushed}
)
{redeemed}
FROM hit r
{gathered};

-- part: mine
-- Claims by id and token. A limit that no plan knows beforehand lets the planner expect one row, so that it looks each up by
-- the primary key: a plan that was made while the table was empty would else walk all of it later.
(
    SELECT * FROM unnest(%(ids)s::text[], %(tokens)s::text[]) AS mine (id, token) LIMIT %(count)s::bigint
) mine

-- name: refresh_claims
-- A row that a mutation holds is left for the next round, so that it cannot keep the others from being renewed. Rows are
-- locked in the order of their ids: renewals of overlapping sets cannot deadlock.
WITH held AS (
    SELECT r.id
    FROM {mine} JOIN {schema}.runs r ON r.id = mine.id
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
    wake_at = coalesce(%(now)s::timestamptz, clock_timestamp()) + %(delay)s::interval, {queued},
    -- Only a redeemed claim has counted an attempt.
    claim_attempts = greatest(0, r.claim_attempts - (%(uncounted)s::bool AND r.redeemed)::int)
WHERE r.id = %(id)s::text AND r.claim_token = %(token)s::text
RETURNING r.id {telling};

-- name: release_claims
WITH held AS (
    SELECT r.id
    FROM {mine} JOIN {schema}.runs r ON r.id = mine.id
    WHERE r.claim_token = mine.token AND NOT r.redeemed
    ORDER BY r.id
    FOR UPDATE OF r
)
UPDATE {schema}.runs r
SET claim_token = NULL, claimed_at = NULL, wake_at = coalesce(%(now)s::timestamptz, clock_timestamp()), {queued}
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
    {queued},
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
    wake_at = coalesce(%(now)s::timestamptz, clock_timestamp()), {queued}
WHERE r.id = %(id)s::text AND (%(tenant)s::text IS NULL OR r.tenant = %(tenant)s::text) AND r.poisoned_at IS NOT NULL
RETURNING r.id {telling};
