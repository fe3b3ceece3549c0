-- What an administrator may have left behind in the database: read by `doctor` alone.

-- name: upkeep
WITH own AS (
    SELECT n.oid FROM pg_namespace n WHERE n.nspname = %(schema)s::text
),
-- Of other roles' sessions a role sees only what it may; of prepared transactions it sees all.
unended AS (
    SELECT concat('session ', a.pid, ' of ', a.usename, ' (' || nullif(a.application_name, '') || ')') AS who,
           clock_timestamp() - a.xact_start AS age
    FROM pg_stat_activity a
    WHERE a.datname = current_database() AND a.backend_type = 'client backend' AND a.pid <> pg_backend_pid()
      AND a.xact_start IS NOT NULL
    UNION ALL
    SELECT 'prepared transaction ' || quote_literal(p.gid) || ' of ' || p.owner, clock_timestamp() - p.prepared
    FROM pg_prepared_xacts p
    WHERE p.database = current_database()
)
SELECT
    -- The rule of a run's row is to hold in a session that replicates too.
    array(
        SELECT t.tgname::text
        FROM pg_trigger t JOIN pg_proc f ON f.oid = t.tgfoid
        WHERE f.pronamespace = (SELECT oid FROM own)
          AND t.tgenabled NOT IN ('A', CASE WHEN t.tgconstraint <> 0 THEN 'A' ELSE 'O' END)
        ORDER BY t.tgname
    ) AS idle_triggers,
    -- One that is being built is not valid yet.
    array(
        SELECT x.relname::text
        FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid JOIN pg_class x ON x.oid = i.indexrelid
        WHERE c.relnamespace = (SELECT oid FROM own) AND NOT i.indisvalid
          AND NOT EXISTS (SELECT FROM pg_stat_progress_create_index b WHERE b.index_relid = i.indexrelid)
        ORDER BY x.relname
    ) AS invalid_indexes,
    (SELECT u.who FROM unended u ORDER BY u.age DESC LIMIT 1) AS oldest_transaction,
    (SELECT max(u.age) FROM unended u) AS oldest_transaction_age;
