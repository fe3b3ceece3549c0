-- Transitions: what they do with the claim, what they write beside the row that `moved` has returned, and their answer. The
-- statements are put together from these parts in transitions.py. Nothing happens when the fence did not hold and `moved`
-- is empty.

-- part: replacing
replaced AS (
    INSERT INTO {schema}.run_fields AS f (run_id, name, value)
    SELECT moved.id, n.name, n.value::json
    FROM moved, unnest(%(replaced_names)s::text[], %(replaced_values)s::text[]) AS n (name, value)
    ON CONFLICT (run_id, name) DO UPDATE SET value = excluded.value
),
cut AS (
    DELETE FROM {schema}.run_chunks c USING moved
    WHERE c.run_id = moved.id AND c.name = ANY (%(replaced_names)s::text[])
)

-- part: appending
-- The sequence of the commit numbers its chunks: it changes each field at most once.
appended AS (
    INSERT INTO {schema}.run_chunks (run_id, name, seq, items)
    SELECT moved.id, n.name, %(checkpoint_seq)s::bigint, n.items::json
    FROM moved, unnest(%(appended_names)s::text[], %(appended_items)s::text[]) AS n (name, items)
)

-- part: noting
-- Up to three events, as most transitions have, of one step and one instant.
INSERT INTO {schema}.run_events (run_id, seq, type, step, at, node, data)
SELECT moved.id, %(expected_event_seq)s::bigint + e.number, e.type, %(event_step)s::bigint,
       %(event_at)s::timestamptz, e.node, e.data
FROM moved, (
    VALUES (1, %(event_type_1)s::text, %(event_node_1)s::text, %(event_data_1)s::json),
           (2, %(event_type_2)s::text, %(event_node_2)s::text, %(event_data_2)s::json),
           (3, %(event_type_3)s::text, %(event_node_3)s::text, %(event_data_3)s::json)
) AS e (number, type, node, data)
WHERE e.type IS NOT NULL

-- part: noting_many
INSERT INTO {schema}.run_events (run_id, seq, type, step, at, node, data)
SELECT moved.id, e.seq, e.type, e.step, e.at, e.node, e.data::json
FROM moved, unnest(
    %(event_seqs)s::bigint[], %(event_types)s::text[], %(event_steps)s::bigint[], %(event_ats)s::timestamptz[],
    %(event_nodes)s::text[], %(event_data)s::text[]
) AS e (seq, type, step, at, node, data)

-- part: carried_on
-- The status is not among these: a commit that keeps its claim leaves it as it was, and to write it would have the rule of the
-- row asked.
step = %(step)s::bigint, checkpoint_seq = %(checkpoint_seq)s::bigint, event_seq = %(event_seq)s::bigint,
checkpoint_type = %(checkpoint_type)s::text, state = %(state)s::json, commit_id = %(commit_id)s::text,
updated_at = %(updated_at)s::timestamptz, claim_attempts = 0, claim_abandons = 0, undelivered = 0, abandon_reason = NULL

-- part: retained
-- The claim stays. Its time is written back as it is unless it grows old: then every column of an index keeps its value, and the
-- update is HOT. Not to refresh it at all would let a long healthy drain be stolen.
moved AS (
    UPDATE {schema}.runs r
    SET {carried_on},
        claimed_at = CASE
            WHEN r.claimed_at < coalesce(%(now)s::timestamptz, clock_timestamp()) - %(refresh_after)s::interval
            THEN coalesce(%(now)s::timestamptz, clock_timestamp())
            ELSE r.claimed_at
        END
    WHERE r.id = %(id)s::text AND r.claim_token = %(claim_token)s::text
      -- As one condition, so that the primary key is the only way to the row, whatever the statistics say.
      AND ({follows}) IS TRUE
    RETURNING r.id, r.claimed_at, coalesce(%(now)s::timestamptz, clock_timestamp()) AS now
)

-- part: retained_quietly
-- The same where the claim is young, so that its time stays: no column is written that the rule of the row reads. Nothing is
-- answered but how many events were written.
moved AS (
    UPDATE {schema}.runs r
    SET {carried_on}
    WHERE r.id = %(id)s::text AND r.claim_token = %(claim_token)s::text
      AND (
          {follows}
          AND r.claimed_at >= coalesce(%(now)s::timestamptz, clock_timestamp()) - %(refresh_after)s::interval
      ) IS TRUE
    RETURNING r.id
)

-- part: given_up
{carried_on},
status = %(status)s::text,
finished_at = CASE
    WHEN %(status)s::text IN ('done', 'failed', 'cancelled')
    THEN coalesce(%(finished_at)s::timestamptz, %(now)s::timestamptz, clock_timestamp())
END,
poisoned_at = NULL, poison_reason = NULL,
claim_token = NULL, claimed_at = NULL, redeemed = false,
wake_at = CASE
    WHEN %(status)s::text <> 'running' THEN NULL
    -- What arrived in the inbox since it was read has found the run claimed and has woken nobody.
    WHEN %(schedule)s::text = 'immediate' OR r.inbox_seq > %(inbox_seq)s::bigint
    THEN coalesce(%(now)s::timestamptz, clock_timestamp())
    ELSE %(wake_at)s::timestamptz
END,
queue = 0

-- part: follows
r.checkpoint_seq = %(expected)s::bigint AND r.event_seq = %(expected_event_seq)s::bigint
AND r.graph_id = %(graph_id)s::text AND r.graph_hash = %(graph_hash)s::text
AND (%(tenant)s::text IS NULL OR r.tenant = %(tenant)s::text)

-- part: released
-- Gives the claim up, or as a serialised mutation (without a token: the row is locked) revokes whatever claim there is.
moved AS (
    UPDATE {schema}.runs r
    SET {given_up}
    WHERE r.id = %(id)s::text AND (%(claim_token)s::text IS NULL OR r.claim_token = %(claim_token)s::text)
      -- As one condition, so that the primary key is the only way to the row, whatever the statistics say.
      AND ({follows}) IS TRUE
    RETURNING r.id, r.claimed_at, r.wake_at, coalesce(%(now)s::timestamptz, clock_timestamp()) AS now
)

-- part: released_as_read
-- The same for a mutation that has read the row without locking it: nothing moves unless the commit that was read is still
-- the last one. Its id tells, as a sequence that a failover took back may come again. Waits for the row no longer than one
-- that locks it first.
{bounds},
moved AS (
    UPDATE {schema}.runs r
    SET {given_up}
    FROM bounds b
    WHERE r.id = %(id)s::text
      AND ({follows} AND r.commit_id IS NOT DISTINCT FROM %(commit_id_read)s::text AND b.lock IS NOT NULL) IS TRUE
    RETURNING r.id, r.claimed_at, r.wake_at, coalesce(%(now)s::timestamptz, clock_timestamp()) AS now
)

-- part: after_the_commit
-- The slot's next run is taken in the same snapshot, which still shows the slot's own claim: that is not counted. Where the
-- fence did not hold there is no clock, so that nothing is due.
clock AS MATERIALIZED (
    SELECT now FROM moved
),
leaving AS MATERIALIZED (
    SELECT id FROM moved
),
{longest_ready}

-- part: answered
SELECT now AS committed_at, claimed_at AS kept_at FROM moved

-- part: answered_and_taken
SELECT moved.now AS committed_at, moved.claimed_at AS kept_at, taken.* FROM moved LEFT JOIN (
{taken}
) taken ON true

-- part: answered_and_leased
SELECT moved.now AS committed_at, moved.claimed_at AS kept_at, (SELECT now FROM clock) AS now,
       (SELECT wake_at FROM next) AS ready_from, NULL::timestamptz AS claimed_from, hit.*
FROM moved LEFT JOIN hit ON true

-- part: answered_and_told
SELECT now AS committed_at, claimed_at AS kept_at {telling_unless_claimed} FROM moved
