-- Graph versions: immutable documents; only the time of publication ever changes.

-- name: save_graph
-- Saving the latest version again changes nothing. Saving an older one makes it the latest, also when the clock has not
-- moved on since the last publication: its time is then a microsecond after that one.
WITH latest AS (
    SELECT v.graph_hash, v.published_at
    FROM {schema}.graph_versions v
    WHERE v.tenant = %(tenant)s::text AND v.graph_id = %(graph_id)s::text
    ORDER BY v.published_at DESC, v.graph_hash DESC
    LIMIT 1
),
moment AS (
    SELECT greatest(
        coalesce(%(now)s::timestamptz, clock_timestamp()),
        (SELECT published_at FROM latest) + interval '1 microsecond'
    ) AS published_at
)
INSERT INTO {schema}.graph_versions AS v (tenant, graph_id, graph_hash, document, published_at)
SELECT %(tenant)s::text, %(graph_id)s::text, %(graph_hash)s::text, %(document)s::text::json, published_at FROM moment
ON CONFLICT (tenant, graph_id, graph_hash) DO UPDATE SET published_at = excluded.published_at
WHERE v.graph_hash IS DISTINCT FROM (SELECT graph_hash FROM latest)
-- Of a row that was inserted and not updated, no transaction has ever ended or locked an older version.
RETURNING v.xmax = 0 AS created;

-- name: fetch_graph
SELECT v.graph_id, v.graph_hash, v.document::text AS document, v.published_at
FROM {schema}.graph_versions v
WHERE v.tenant = %(tenant)s::text AND v.graph_id = %(graph_id)s::text AND v.graph_hash = %(graph_hash)s::text;

-- name: fetch_latest_graph
SELECT v.graph_id, v.graph_hash, v.document::text AS document, v.published_at
FROM {schema}.graph_versions v
WHERE v.tenant = %(tenant)s::text AND v.graph_id = %(graph_id)s::text
ORDER BY v.published_at DESC, v.graph_hash DESC
LIMIT 1;

-- name: list_graph_versions
SELECT v.graph_id, v.graph_hash, v.published_at
FROM {schema}.graph_versions v
WHERE v.tenant = %(tenant)s::text AND v.graph_id = %(graph_id)s::text
  AND (%(before)s::text IS NULL OR (v.published_at, v.graph_hash) < (
      SELECT b.published_at, b.graph_hash FROM {schema}.graph_versions b
      WHERE b.tenant = %(tenant)s::text AND b.graph_id = %(graph_id)s::text AND b.graph_hash = %(before)s::text
  ))
ORDER BY v.published_at DESC, v.graph_hash DESC
LIMIT %(limit)s::bigint;

-- name: list_graphs
SELECT DISTINCT ON (v.graph_id) v.graph_id, v.graph_hash, v.document::text AS document, v.published_at
FROM {schema}.graph_versions v
WHERE v.tenant = %(tenant)s::text AND (%(after)s::text IS NULL OR v.graph_id > %(after)s::text COLLATE "C")
ORDER BY v.graph_id, v.published_at DESC, v.graph_hash DESC
LIMIT %(limit)s::bigint;
