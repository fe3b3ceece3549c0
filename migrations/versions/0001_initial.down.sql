DROP TABLE {schema}.dispatch;
DROP TABLE {schema}.worker_slots;
DROP TABLE {schema}.run_inbox;
DROP TABLE {schema}.run_events;
DROP TABLE {schema}.run_chunks;
DROP TABLE {schema}.run_fields;
DROP TABLE {schema}.runs;
DROP TABLE {schema}.graph_versions;
