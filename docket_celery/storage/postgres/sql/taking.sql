-- One ready run in the order of age, the common case of a slot that asks for its next one: leased to it, or taken, which is
-- claimed and redeemed at once. The frame of a scan is in scans.sql, and so is the long way for all other cases.

-- part: alone
-- Of a statement that does nothing else: it has a clock of its own, and gives no claim up.
clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::timestamptz, clock_timestamp()) AS now, {unflushed}
),
leaving AS MATERIALIZED (
    SELECT NULL::text AS id WHERE false
)

-- part: overdue
overdue AS MATERIALIZED (
    SELECT EXISTS (
        SELECT FROM {schema}.runs r
        WHERE r.status = 'running' AND r.poisoned_at IS NULL
          AND r.claimed_at < (SELECT now FROM clock) - %(ttl)s::interval
          AND r.claimed_at >= coalesce(%(claimed_from)s::timestamptz, '-infinity')
    ) AS yes
)

-- part: claims_out
-- Once every slot is taken it does not matter by how many more. Claims that the same statement has just given up (`leaving`)
-- do not count.
(
    SELECT count(*) FROM (
        SELECT FROM {schema}.runs r
        WHERE r.status = 'running' AND r.poisoned_at IS NULL
          AND r.claimed_at >= greatest(
              (SELECT now FROM clock) - %(ttl)s::interval, coalesce(%(claimed_from)s::timestamptz, '-infinity')
          )
          AND r.id <> ALL (ARRAY(SELECT id FROM leaving))
        ORDER BY r.claimed_at, r.id
        LIMIT (SELECT count FROM slots)
    ) held
)

-- part: weighed
-- Whether there is an expired claim, and whether a slot is free.
{slots},
{overdue},
free AS MATERIALIZED (
    SELECT CASE
        WHEN (SELECT %(demanded)s::bool) THEN (SELECT count FROM slots) > {claims_out}
        ELSE true
    END AS yes
)

-- part: by_age
-- The ready runs, the longest ready first.
FROM {schema}.runs r
WHERE r.status = 'running' AND r.poisoned_at IS NULL AND r.wake_at <= (SELECT now FROM clock)
  AND r.wake_at >= coalesce(%(ready_from)s::timestamptz, '-infinity')
ORDER BY r.wake_at, r.id

-- part: longest_ready
-- The run, locked; none as soon as there is anything to weigh: an expired claim whose turn it may be, a slot that is not
-- free.
{weighed},
next AS MATERIALIZED (
    SELECT r.id, r.wake_at
    {by_age}
    LIMIT (
        SELECT (f.yes AND (%(preference)s::text IS NOT DISTINCT FROM 'ready' OR NOT (SELECT yes FROM overdue)))::int
        FROM free f
    )
    FOR UPDATE SKIP LOCKED
)

-- part: still_ready
-- Attempts that are used up are for the long way. Inside CASE, so that the primary key is the only way to the row.
CASE
    WHEN r.status = 'running' AND r.poisoned_at IS NULL AND r.claim_attempts < %(max_attempts)s::bigint
    THEN r.wake_at <= (SELECT now FROM clock)
    ELSE false
END

-- part: as_seen
-- The row is locked in its newest version, but its values are read under the snapshot of the statement, which is old when a
-- commit has waited for its own row. A run that moved on in between is left to the next look.
(r.checkpoint_seq = (SELECT seen.checkpoint_seq FROM {schema}.runs seen WHERE seen.id = r.id)) IS TRUE

-- part: leasing
-- All that a lease says is of the row itself, so in its newest version, however old the snapshot is.
hit AS (
    UPDATE {schema}.runs r
    SET wake_at = NULL, claimed_at = (SELECT now FROM clock),
        claim_token = coalesce(%(token)s::text, replace(gen_random_uuid()::text, '-', ''))
    WHERE r.id = (SELECT id FROM next) AND {still_ready}
    RETURNING r.id, r.tenant, r.graph_id, r.graph_hash, r.checkpoint_seq, r.claim_token, r.redeemed, r.claim_attempts,
              'ready' AS class, false AS unredeemed, false AS exhausted
)

-- name: lease_ready
-- Always one row. `scanned` is false where the long way has to decide; otherwise there is a lease in it, or nothing due,
-- or no slot free.
WITH
{alone},
{longest_ready},
{leasing}
SELECT clock.now,
       hit.id IS NOT NULL OR NOT free.yes OR NOT (EXISTS (SELECT FROM next) OR (SELECT yes FROM overdue)) AS scanned,
       false AS passed_by, {next_wake},
       -- Before it there is nothing alive in the class that was looked at. If none was found, rivals may hold the first.
       CASE WHEN free.yes THEN coalesce((SELECT wake_at FROM next), (
           SELECT r.wake_at {by_age} LIMIT 1
       ), clock.now) END AS ready_from,
       NULL::timestamptz AS claimed_from,
       hit.*
FROM clock CROSS JOIN free LEFT JOIN hit ON true;

-- part: taking
hit AS (
    UPDATE {schema}.runs r
    SET wake_at = NULL, claim_token = %(token)s::text, claimed_at = (SELECT now FROM clock), redeemed = true,
        claim_attempts = r.claim_attempts + 1
    WHERE r.id = (SELECT id FROM next) AND {still_ready} AND {as_seen}
    RETURNING r.*, (SELECT now FROM clock) AS now
)

-- part: taken
{redeemed},
       -- Before it there is nothing alive in the class that was looked at; where claims begin was not looked for.
       (SELECT wake_at FROM next) AS ready_from, NULL::timestamptz AS claimed_from
FROM hit r
{gathered}

-- name: take_ready
-- One row, or none where the long way has to decide.
WITH
{alone},
{longest_ready},
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

-- name: take_alone
-- The one run that is due, so that whoever takes it has nobody else to claim for. None as soon as a second one is due, an
-- expired claim is there, or no slot is free: that is for a scan.
WITH
{alone},
{weighed},
first_two AS MATERIALIZED (
    SELECT r.id
    {by_age}
    LIMIT (SELECT 2 * (f.yes AND NOT o.yes)::int FROM free f, overdue o)
),
next AS MATERIALIZED (
    SELECT r.id, r.wake_at
    FROM {schema}.runs r
    WHERE r.id = (SELECT min(id) FROM first_two HAVING count(*) = 1)
      AND CASE WHEN r.status = 'running' AND r.poisoned_at IS NULL THEN r.wake_at <= (SELECT now FROM clock) ELSE false END
    FOR UPDATE SKIP LOCKED
),
{taking}
SELECT taken.*, {next_wake} FROM (
{taken}
) taken;
