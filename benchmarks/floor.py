"""The floor: the same row updates and event inserts by one bare prepared statement, with nothing around them."""

from __future__ import annotations

import time

import psycopg

TABLES = """
CREATE TABLE IF NOT EXISTS floor_run (id int PRIMARY KEY, seq bigint NOT NULL, token text, state json, fields json)
    WITH (fillfactor = 80);
CREATE TABLE IF NOT EXISTS floor_event (run_id int, seq bigint, type text, data json, PRIMARY KEY (run_id, seq));
"""

SETUP = """
TRUNCATE floor_run, floor_event;
INSERT INTO floor_run SELECT n, 0, 'token', '{}', '{}' FROM generate_series(1, 10000) n;
"""

STEP = """
WITH moved AS (
    UPDATE floor_run SET seq = seq + 1, state = %s WHERE id = %s AND seq = %s AND token = 'token' RETURNING id
)
INSERT INTO floor_event SELECT moved.id, e.seq, e.type, '{}'
FROM moved, (VALUES (%s, 'node_completed'), (%s, 'step_committed')) AS e (seq, type)
"""

STATE = '{"version":1,"tasks":[{"node":"n001","step":1,"state":"ready","attempt":1}],"interrupts":[],"arrived":{}}'


def steps_per_second(database_url: str, steps: int) -> float:
    """One client, one connection, autocommit: every step of one run, one after the other."""
    with psycopg.connect(database_url, autocommit=True) as connection, connection.cursor() as cursor:
        connection.execute(TABLES + SETUP)
        began = time.perf_counter()
        for seq in range(steps):
            cursor.execute(STEP, (STATE, 1, seq, 2 * seq, 2 * seq + 1), prepare=True)
        return steps / (time.perf_counter() - began)


def runs_per_second(database_url: str, runs: int) -> float:
    """One client: as many row updates as one-node runs commit, one per run, one after the other."""
    with psycopg.connect(database_url, autocommit=True) as connection, connection.cursor() as cursor:
        connection.execute(TABLES + SETUP)
        began = time.perf_counter()
        for run in range(1, runs + 1):
            cursor.execute(STEP, (STATE, run, 0, 0, 1), prepare=True)
        return runs / (time.perf_counter() - began)
