-- Several commits at once: what the statements of transitions.sql do for one run, for each of several, every one under its
-- own fence. Who does not come back was not moved, and commits alone. The statements are put together from these parts in
-- together.py. Nothing in them waits for a lock.

-- part: fenced
-- The proposals whose fence holds. A row that somebody else holds is passed by: only its own commit waits for it. A limit that
-- no plan knows beforehand lets the planner expect one row, so that it looks each up by the primary key: a plan that was made
-- while the table was empty would else walk all of it later.
fenced AS MATERIALIZED (
    SELECT p.*
    FROM (
        SELECT * FROM unnest(
            %(ids)s::text[], %(tenants)s::text[], %(graph_ids)s::text[], %(graph_hashes)s::text[],
            %(claim_tokens)s::text[], %(expected_seqs)s::bigint[], %(expected_event_seqs)s::bigint[], %(statuses)s::text[],
            %(steps)s::bigint[], %(last_event_seqs)s::bigint[], %(checkpoint_types)s::text[], %(states)s::text[],
            %(commit_ids)s::text[], %(updated_ats)s::timestamptz[], %(finished_ats)s::timestamptz[],
            %(refresh_afters)s::interval[], %(schedules)s::text[], %(wake_ats)s::timestamptz[],
            %(inbox_seqs)s::bigint[]
        ) AS p (
            id, tenant, graph_id, graph_hash, claim_token, expected, expected_event_seq, status, step,
            event_seq, checkpoint_type, state, commit_id, updated_at, finished_at, refresh_after,
            schedule, wake_at, inbox_seq
        )
        LIMIT %(count)s::bigint
    ) p
    JOIN {schema}.runs r ON r.id = p.id
    WHERE (
        r.claim_token = p.claim_token AND r.checkpoint_seq = p.expected AND r.event_seq = p.expected_event_seq
        AND r.graph_id = p.graph_id AND r.graph_hash = p.graph_hash AND (p.tenant IS NULL OR r.tenant = p.tenant)
    ) IS TRUE
    FOR UPDATE OF r SKIP LOCKED
)

-- part: all_moved
-- A proposal without a schedule keeps its claim.
moved AS (
    UPDATE {schema}.runs r
    SET status = p.status, step = p.step, checkpoint_seq = p.expected + 1, event_seq = p.event_seq,
        checkpoint_type = p.checkpoint_type, state = p.state::json, commit_id = p.commit_id, updated_at = p.updated_at,
        finished_at = CASE
            WHEN p.status IN ('done', 'failed', 'cancelled')
            THEN coalesce(p.finished_at, %(now)s::timestamptz, clock_timestamp())
        END,
        claim_attempts = 0, claim_abandons = 0, undelivered = 0, abandon_reason = NULL,
        claim_token = CASE WHEN p.schedule IS NULL THEN r.claim_token END,
        claimed_at = CASE
            WHEN p.schedule IS NOT NULL THEN NULL
            WHEN r.claimed_at < coalesce(%(now)s::timestamptz, clock_timestamp()) - p.refresh_after
            THEN coalesce(%(now)s::timestamptz, clock_timestamp())
            ELSE r.claimed_at
        END,
        redeemed = r.redeemed AND p.schedule IS NULL,
        wake_at = CASE
            WHEN p.schedule IS NULL OR p.status <> 'running' THEN NULL
            -- What arrived in the inbox since it was read has found the run claimed and has woken nobody.
            WHEN p.schedule = 'immediate' OR r.inbox_seq > p.inbox_seq
            THEN coalesce(%(now)s::timestamptz, clock_timestamp())
            ELSE p.wake_at
        END,
        queue = CASE WHEN p.schedule IS NULL THEN r.queue ELSE 0 END
    FROM fenced p
    -- Every row is locked by now. The fence stands here again so that no outcome rests on an older version.
    WHERE r.id = p.id AND (r.claim_token = p.claim_token AND r.checkpoint_seq = p.expected) IS TRUE
    RETURNING r.id, r.checkpoint_seq, r.claimed_at, coalesce(%(now)s::timestamptz, clock_timestamp()) AS now
)

-- part: all_replacing
replaced AS (
    INSERT INTO {schema}.run_fields AS f (run_id, name, value)
    SELECT moved.id, n.name, n.value::json
    FROM moved JOIN unnest(%(replaced_ids)s::text[], %(replaced_names)s::text[], %(replaced_values)s::text[])
        AS n (id, name, value) ON n.id = moved.id
    ON CONFLICT (run_id, name) DO UPDATE SET value = excluded.value
),
cut AS (
    DELETE FROM {schema}.run_chunks c
    USING moved JOIN unnest(%(replaced_ids)s::text[], %(replaced_names)s::text[]) AS n (id, name) ON n.id = moved.id
    WHERE c.run_id = moved.id AND c.name = n.name
)

-- part: all_appending
-- The sequence of the commit numbers its chunks: it changes each field at most once.
appended AS (
    INSERT INTO {schema}.run_chunks (run_id, name, seq, items)
    SELECT moved.id, n.name, moved.checkpoint_seq, n.items::json
    FROM moved JOIN unnest(%(appended_ids)s::text[], %(appended_names)s::text[], %(appended_items)s::text[])
        AS n (id, name, items) ON n.id = moved.id
)

-- part: all_noting
events AS (
    INSERT INTO {schema}.run_events (run_id, seq, type, step, at, node, data)
    SELECT moved.id, e.seq, e.type, e.step, e.at, e.node, e.data::json
    FROM moved JOIN unnest(
        %(event_ids)s::text[], %(event_seqs)s::bigint[], %(event_types)s::text[], %(event_steps)s::bigint[],
        %(event_ats)s::timestamptz[], %(event_nodes)s::text[], %(event_data)s::text[]
    ) AS e (id, seq, type, step, at, node, data) ON e.id = moved.id
)

-- part: all_answered
SELECT id AS committed, now AS committed_at, claimed_at AS kept_at FROM moved

-- part: all_given
-- One ready run for each that asks, as far as the slots allow: by no more than the claims that are given up here. Who is to
-- prefer an expired claim, while there is one, asks again by itself.
clock AS MATERIALIZED (
    SELECT max(now) AS now FROM moved
),
leaving AS MATERIALIZED (
    SELECT id FROM moved WHERE claimed_at IS NULL
),
{slots},
{overdue},
asking AS MATERIALIZED (
    SELECT moved.id, a.token, row_number() OVER (ORDER BY a.number) AS number
    FROM moved
    JOIN unnest(%(asking_ids)s::text[], %(tokens)s::text[], %(preferences)s::text[])
        WITH ORDINALITY AS a (id, token, preference, number) ON a.id = moved.id
    WHERE a.preference IS NOT DISTINCT FROM 'ready' OR NOT (SELECT yes FROM overdue)
),
next AS MATERIALIZED (
    SELECT r.id, r.wake_at
    {by_age}
    LIMIT least(
        (SELECT count(*) FROM asking),
        CASE WHEN (SELECT %(demanded)s::bool) THEN greatest(0, (SELECT count FROM slots) - {claims_out}) END
    )
    FOR UPDATE SKIP LOCKED
),
given AS MATERIALIZED (
    SELECT n.id, a.token, a.id AS asked_by
    FROM (SELECT next.id, row_number() OVER (ORDER BY next.wake_at, next.id) AS number FROM next) n
    JOIN asking a ON a.number = n.number
)

-- part: all_taking
hit AS (
    UPDATE {schema}.runs r
    SET wake_at = NULL, claim_token = g.token, claimed_at = (SELECT now FROM clock), redeemed = true,
        claim_attempts = r.claim_attempts + 1
    FROM given g
    WHERE r.id = g.id AND {still_ready} AND {as_seen}
    RETURNING r.*, (SELECT now FROM clock) AS now, g.asked_by
),
-- Materialized: or each run's values would be gathered anew for every commit.
taken AS MATERIALIZED (
    {redeemed}, r.asked_by,
           (SELECT min(wake_at) FROM next) AS ready_from, NULL::timestamptz AS claimed_from
    FROM hit r
    {gathered}
)

-- part: all_leasing
hit AS (
    UPDATE {schema}.runs r
    SET wake_at = NULL, claim_token = g.token, claimed_at = (SELECT now FROM clock)
    FROM given g
    WHERE r.id = g.id AND {still_ready}
    RETURNING r.id, r.tenant, r.graph_id, r.graph_hash, r.checkpoint_seq, r.claim_token, r.redeemed, r.claim_attempts,
              g.asked_by
)

-- part: all_leased
SELECT moved.id AS committed, moved.now AS committed_at, moved.claimed_at AS kept_at, (SELECT now FROM clock) AS now,
       (SELECT min(wake_at) FROM next) AS ready_from, NULL::timestamptz AS claimed_from, hit.*
FROM moved LEFT JOIN hit ON hit.asked_by = moved.id

-- part: all_taken
SELECT moved.id AS committed, moved.now AS committed_at, moved.claimed_at AS kept_at, taken.*
FROM moved LEFT JOIN taken ON taken.asked_by = moved.id
