-- Telling whoever listens that a run is due, and the listener's own session. Speed only: the tick finds all of it anyway.

-- part: telling
-- Ends the list of columns of a statement that may make a run due at once. The server sends it when the transaction commits,
-- once however many runs there are in it. Left out where docket_listen is off.
, CASE WHEN wake_at <= clock_timestamp() THEN pg_notify('{channel}', '') END AS told

-- part: telling_unless_claimed
-- The same for a serialised mutation. A vehicle that ends its run with the same statement nudges by itself, as it has a
-- broker: the lock that each commit with a notification takes on the whole server is kept out of the hot path.
, CASE WHEN %(claim_token)s::text IS NULL AND wake_at <= clock_timestamp() THEN pg_notify('{channel}', '') END AS told

-- name: notice_dead_peers
-- So that the turn of a listener whose machine has vanished is free again within half a minute.
SELECT set_config('tcp_keepalives_idle', '10', false), set_config('tcp_keepalives_interval', '5', false),
       set_config('tcp_keepalives_count', '3', false);

-- name: take_turn
SELECT pg_try_advisory_lock(%(key)s::bigint);

-- name: listen
LISTEN {channel};

-- name: still_there
SELECT;

-- name: has_listener
-- A key of 64 bits stands in two columns.
SELECT EXISTS (
    SELECT FROM pg_locks l
    WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
      AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
      AND l.classid::bigint = %(key)s::bigint >> 32 AND l.objid::bigint = %(key)s::bigint & 4294967295
) AS found;
