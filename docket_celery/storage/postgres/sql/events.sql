-- Events: reads only. They are written by the transitions in runs.sql.

-- name: list_events
-- The run, the bounds of what is left and the page come from one snapshot. A run without events is one row of NULLs.
SELECT r.event_seq AS latest_committed,
       (SELECT min(b.seq) FROM {schema}.run_events b WHERE b.run_id = r.id) AS oldest_available,
       (SELECT max(b.seq) FROM {schema}.run_events b WHERE b.run_id = r.id) AS latest_available,
       e.seq, e.type, e.step, e.at, e.node, e.data::text AS data
FROM {schema}.runs r
LEFT JOIN LATERAL (
    SELECT * FROM {schema}.run_events p
    WHERE p.run_id = r.id AND p.seq > %(after_seq)s::bigint
    ORDER BY p.seq
    LIMIT %(limit)s::bigint
) e ON true
WHERE r.id = %(id)s::text AND (%(tenant)s::text IS NULL OR r.tenant = %(tenant)s::text)
ORDER BY e.seq;
