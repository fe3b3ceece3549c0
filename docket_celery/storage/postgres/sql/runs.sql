-- Runs: inserting, reading, and the transitions that replace a run, its changed fields and its events at once.
--
-- Values travel as text cast to json, which keeps them to the byte, and come back as text.
-- A tenant parameter of NULL is the system scope, which sees everything; '' is the owner of what belongs to no tenant.

-- name: clock
SELECT coalesce(%(now)s::timestamptz, clock_timestamp()) AS now;

-- part: starting
-- A rival for a start key may be in a transaction that stays open. A lock of NULL leaves the bound of a caller's own alone.
clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::timestamptz, clock_timestamp()) AS now,
           CASE WHEN %(lock)s::text IS NOT NULL THEN set_config('lock_timeout', %(lock)s::text, true) END AS lock
)

-- name: insert_run
WITH {starting},
run AS (
    INSERT INTO {schema}.runs (
        id, tenant, graph_id, graph_hash, status, step, checkpoint_seq, event_seq, checkpoint_type, state,
        wake_at, start_key, input_digest, events_since, started_at, updated_at, finished_at
    )
    SELECT %(id)s::text, %(tenant)s::text, %(graph_id)s::text, %(graph_hash)s::text, %(status)s::text,
           %(step)s::bigint, %(checkpoint_seq)s::bigint, %(event_seq)s::bigint, %(checkpoint_type)s::text,
           %(state)s::text::json,
           CASE %(schedule)s::text WHEN 'immediate' THEN now WHEN 'at' THEN %(wake_at)s::timestamptz END,
           %(start_key)s::text, %(input_digest)s::text, now, now, now,
           CASE WHEN %(schedule)s::text = 'terminal' THEN now END
    FROM clock
    -- The rival for a start key may commit while this waits for it. No row comes back then, not even the rival's: the
    -- next statement looks for it.
    ON CONFLICT (tenant, start_key) WHERE start_key IS NOT NULL DO NOTHING
    RETURNING id, started_at, wake_at
),
fields AS (
    INSERT INTO {schema}.run_fields (run_id, name, value)
    SELECT run.id, f.name, f.value::json
    FROM run, unnest(%(replaced_names)s::text[], %(replaced_values)s::text[]) AS f (name, value)
),
events AS (
    INSERT INTO {schema}.run_events (run_id, seq, type, step, at, node, data)
    SELECT run.id, e.seq, e.type, e.step, run.started_at, e.node, e.data::json
    FROM run, unnest(
        %(event_seqs)s::bigint[], %(event_types)s::text[], %(event_steps)s::bigint[], %(event_nodes)s::text[],
        %(event_data)s::text[]
    ) AS e (seq, type, step, node, data)
)
SELECT started_at AS now {telling} FROM run;

-- name: insert_runs
-- Never prepared: each batch has its own size. Rows go in by key, so that two batches with the same keys wait for each
-- other in one order.
WITH {starting},
run AS (
    INSERT INTO {schema}.runs (
        id, tenant, graph_id, graph_hash, status, step, checkpoint_seq, event_seq, checkpoint_type, state,
        wake_at, start_key, input_digest, events_since, started_at, updated_at, finished_at
    )
    SELECT g.id, %(tenant)s::text, g.graph_id, g.graph_hash, g.status, g.step, 1, g.event_seq,
           %(checkpoint_type)s::text, g.state::json,
           CASE g.schedule WHEN 'immediate' THEN now WHEN 'at' THEN g.wake_at END,
           g.start_key, g.input_digest, now, now, now, CASE WHEN g.schedule = 'terminal' THEN now END
    FROM clock, unnest(
        %(ids)s::text[], %(graph_ids)s::text[], %(graph_hashes)s::text[], %(statuses)s::text[], %(steps)s::bigint[],
        %(last_event_seqs)s::bigint[], %(states)s::text[], %(schedules)s::text[], %(wake_ats)s::timestamptz[],
        %(start_keys)s::text[], %(input_digests)s::text[]
    ) AS g (id, graph_id, graph_hash, status, step, event_seq, state, schedule, wake_at, start_key, input_digest)
    ORDER BY g.start_key, g.id
    ON CONFLICT (tenant, start_key) WHERE start_key IS NOT NULL DO NOTHING
    RETURNING id, started_at, wake_at
),
fields AS (
    INSERT INTO {schema}.run_fields (run_id, name, value)
    SELECT run.id, f.name, f.value::json
    FROM run JOIN unnest(%(field_ids)s::text[], %(field_names)s::text[], %(field_values)s::text[])
        AS f (run_id, name, value) ON f.run_id = run.id
),
events AS (
    INSERT INTO {schema}.run_events (run_id, seq, type, step, at, node, data)
    SELECT run.id, e.seq, e.type, e.step, run.started_at, e.node, e.data::json
    FROM run JOIN unnest(
        %(event_ids)s::text[], %(event_seqs)s::bigint[], %(event_types)s::text[], %(event_steps)s::bigint[],
        %(event_nodes)s::text[], %(event_data)s::text[]
    ) AS e (run_id, seq, type, step, node, data) ON e.run_id = run.id
)
SELECT id, started_at AS now {telling} FROM run;

-- name: holders_of_keys
SELECT r.id, r.graph_id, r.graph_hash, r.input_digest, r.start_key
FROM {schema}.runs r
WHERE r.tenant = %(tenant)s::text AND r.start_key = ANY (%(start_keys)s::text[]) AND r.start_key IS NOT NULL;

-- name: holder_of_key
SELECT r.id, r.graph_id, r.graph_hash, r.input_digest
FROM {schema}.runs r
WHERE r.tenant = %(tenant)s::text AND r.start_key = %(start_key)s::text;

-- part: whole
-- A run's row with its values. One statement, so one snapshot: they belong together.
SELECT r.id, r.tenant, r.graph_id, r.graph_hash, r.status, r.step, r.checkpoint_seq, r.event_seq,
       r.state::text AS state, r.commit_id, r.started_at, r.updated_at, r.finished_at, r.start_key, r.input_digest,
       r.wake_at, r.claimed_at, r.redeemed, r.claim_attempts, r.claim_abandons, r.undelivered, r.abandon_reason,
       r.poisoned_at, r.poison_reason, coalesce(%(now)s::timestamptz, clock_timestamp()) AS now,
       -- Nobody holds the run, nobody was changing or locking its row when it was read, and a session that can only read, as on
       -- a server that is the primary no more, cannot tell. Where somebody has locked the row and left it, this is false too.
       r.claim_token IS NULL AND r.xmax = 0 AND current_setting('transaction_read_only') = 'off' AS at_rest,
       field_names, field_values, chunk_names, chunk_items
FROM {schema}.runs r
{gathered_whole}

-- part: gathered_whole
-- The values of one run, as arrays in the order in which they are put together.
CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(f.name ORDER BY f.name), '{}') AS field_names,
           coalesce(array_agg(f.value::text ORDER BY f.name), '{}') AS field_values
    FROM {schema}.run_fields f WHERE f.run_id = r.id
) fields
CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(c.name ORDER BY c.name, c.seq), '{}') AS chunk_names,
           coalesce(array_agg(c.items::text ORDER BY c.name, c.seq), '{}') AS chunk_items
    FROM {schema}.run_chunks c WHERE c.run_id = r.id
) chunks

-- name: fetch_run
{whole}
WHERE r.id = %(id)s::text AND (%(tenant)s::text IS NULL OR r.tenant = %(tenant)s::text);

-- name: fetch_runs
{whole}
WHERE r.id = ANY (%(ids)s::text[]) AND r.tenant = %(tenant)s::text;

-- name: list_runs
-- Never prepared: the planner has to see which filters are set to choose the index. Rows whose key Python cannot hold
-- have no cursor and are left out.
SELECT r.id, r.tenant, r.graph_id, r.graph_hash, r.status, r.step, r.checkpoint_seq, r.started_at, r.updated_at,
       r.finished_at, r.wake_at, r.claimed_at, r.poisoned_at
FROM {schema}.runs r
WHERE (%(tenant)s::text IS NULL OR r.tenant = %(tenant)s::text)
  AND (%(graph_id)s::text IS NULL OR r.graph_id = %(graph_id)s::text)
  AND (%(graph_hash)s::text IS NULL OR r.graph_hash = %(graph_hash)s::text)
  AND (%(statuses)s::text[] IS NULL OR r.status = ANY (%(statuses)s::text[]))
  AND (NOT %(poisoned)s::boolean OR r.poisoned_at IS NOT NULL)
  AND (%(before_at)s::timestamptz IS NULL
       OR (r.started_at, r.id) < (%(before_at)s::timestamptz, %(before_id)s::text COLLATE "C"))
  AND r.started_at BETWEEN '0001-01-02Z' AND '9999-12-31Z'
ORDER BY r.started_at DESC, r.id DESC
LIMIT %(limit)s::bigint;

-- name: diagnose
SELECT r.graph_id, r.graph_hash, r.checkpoint_seq, r.event_seq, r.commit_id, r.claimed_at,
       r.claim_token IS NOT DISTINCT FROM %(claim_token)s::text AS held,
       coalesce(%(now)s::timestamptz, clock_timestamp()) AS now
FROM {schema}.runs r
WHERE r.id = %(id)s::text AND (%(tenant)s::text IS NULL OR r.tenant = %(tenant)s::text);

-- name: force_cancel
-- Reads neither document nor values. The event comes after all that are there, also where the row's counter is wrong.
WITH moved AS (
    UPDATE {schema}.runs r
    SET status = 'cancelled', checkpoint_seq = r.checkpoint_seq + 1, checkpoint_type = 'run_cancelled',
        event_seq = 1 + greatest(
            r.event_seq, (SELECT max(e.seq) FROM {schema}.run_events e WHERE e.run_id = r.id)
        ),
        state = %(state)s::text::json, commit_id = %(commit_id)s::text,
        updated_at = coalesce(%(now)s::timestamptz, clock_timestamp()),
        finished_at = coalesce(%(now)s::timestamptz, clock_timestamp()),
        claim_attempts = 0, claim_abandons = 0, undelivered = 0, abandon_reason = NULL,
        poisoned_at = NULL, poison_reason = NULL,
        claim_token = NULL, claimed_at = NULL, redeemed = false, wake_at = NULL
    WHERE r.id = %(id)s::text AND (%(tenant)s::text IS NULL OR r.tenant = %(tenant)s::text)
      AND r.status IN ('running', 'waiting')
    RETURNING r.id, r.graph_id, r.graph_hash, r.status, r.step, r.checkpoint_seq, r.event_seq, r.started_at,
              r.updated_at, r.finished_at, r.updated_at AS now
),
events AS (
    INSERT INTO {schema}.run_events (run_id, seq, type, step, at, data)
    SELECT moved.id, moved.event_seq, 'run_cancelled', moved.step, moved.updated_at, %(data)s::text::json FROM moved
)
SELECT * FROM moved;

-- name: bare_run
SELECT r.id, r.graph_id, r.graph_hash, r.status, r.step, r.checkpoint_seq, r.event_seq, r.started_at, r.updated_at,
       r.finished_at, r.commit_id, coalesce(%(now)s::timestamptz, clock_timestamp()) AS now
FROM {schema}.runs r
WHERE r.id = %(id)s::text AND (%(tenant)s::text IS NULL OR r.tenant = %(tenant)s::text);

-- part: bounds
-- How long a transaction waits for a lock, and stands still. Local to it, so that a pooled session keeps its own settings.
-- Joined to the rows that a statement locks, they hold before it locks them: rows are locked after they were joined.
bounds AS MATERIALIZED (
    SELECT set_config('lock_timeout', %(lock)s::text, true) AS lock,
           set_config('idle_in_transaction_session_timeout', %(idle)s::text, true) AS idle
)

-- name: lock_run
-- The values are read by the next statement: one that waits here and reads them too can return the new row with old ones.
WITH {bounds}
SELECT r.id, b.lock, b.idle FROM bounds b CROSS JOIN {schema}.runs r
WHERE r.id = %(id)s::text AND (%(tenant)s::text IS NULL OR r.tenant = %(tenant)s::text)
FOR UPDATE OF r;
