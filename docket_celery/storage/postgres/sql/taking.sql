-- Taking a run: claimed and redeemed at once, by a slot that begins it. The frame of a scan is in scans.sql.

-- part: taking
-- The short way for the common case, one ready run in the order of age. `hit` has no row as soon as there is anything to
-- weigh: an expired claim whose turn it may be, attempts that are used up, a slot that is not free.
{slots},
allowed AS MATERIALIZED (
    SELECT (
        %(preference)s::text IS NOT DISTINCT FROM 'ready' OR NOT EXISTS (
            SELECT FROM {schema}.runs r
            WHERE r.status = 'running' AND r.poisoned_at IS NULL
              AND r.claimed_at < (SELECT now FROM clock) - %(ttl)s::interval
              AND r.claimed_at >= coalesce(%(claimed_from)s::timestamptz, '-infinity')
        )
    ) AND CASE
        WHEN %(demanded)s::bool THEN (SELECT count FROM slots) > (
            SELECT count(*) FROM (
                SELECT FROM {schema}.runs r
                WHERE r.status = 'running' AND r.poisoned_at IS NULL
                  AND r.claimed_at >= greatest(
                      (SELECT now FROM clock) - %(ttl)s::interval, coalesce(%(claimed_from)s::timestamptz, '-infinity')
                  )
                  AND r.id IS DISTINCT FROM %(leaving)s::text
                ORDER BY r.claimed_at, r.id
                LIMIT (SELECT count FROM slots)
            ) held
        )
        ELSE true
    END AS yes
),
next AS MATERIALIZED (
    SELECT r.id, r.wake_at
    FROM {schema}.runs r
    WHERE r.status = 'running' AND r.poisoned_at IS NULL AND r.wake_at <= (SELECT now FROM clock)
      AND r.wake_at >= coalesce(%(ready_from)s::timestamptz, '-infinity')
    ORDER BY r.wake_at, r.id
    LIMIT (SELECT yes::int FROM allowed)
    FOR UPDATE SKIP LOCKED
),
hit AS (
    UPDATE {schema}.runs r
    SET wake_at = NULL, claim_token = %(token)s::text, claimed_at = (SELECT now FROM clock), redeemed = true,
        claim_attempts = r.claim_attempts + 1
    WHERE r.id = (SELECT id FROM next)
      -- Inside CASE, so that the primary key is the only way to the row.
      AND CASE
          WHEN r.status = 'running' AND r.poisoned_at IS NULL AND r.claim_attempts < %(max_attempts)s::bigint
          THEN r.wake_at <= (SELECT now FROM clock)
          ELSE false
      END
    RETURNING r.*, (SELECT now FROM clock) AS now
)

-- part: taken
{redeemed},
       -- Before it there is nothing alive in the class that was looked at; of claims this statement has seen none.
       (SELECT wake_at FROM next) AS ready_from, NULL::timestamptz AS claimed_from
FROM hit r
{gathered}

-- name: take_ready
WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::timestamptz, clock_timestamp()) AS now, {unflushed}
),
{taking}
{taken};

-- name: taken_before
-- The run that was taken under a token, if the reply was lost on its way.
WITH hit AS (
    SELECT r.*, coalesce(%(now)s::timestamptz, clock_timestamp()) AS now
    FROM {schema}.runs r
    WHERE r.status = 'running' AND r.poisoned_at IS NULL
      AND r.claimed_at >= coalesce(%(now)s::timestamptz, clock_timestamp()) - %(ttl)s::interval
      AND r.claim_token = %(token)s::text
)
{redeemed}
FROM hit r
{gathered};
