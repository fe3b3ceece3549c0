-- The first schema: graph versions, runs with their fields, chunks, events and inbox, and the fleet.
--
-- The name in braces stands for the quoted name of the schema. Neither percent signs nor single colons may appear in
-- this file, since Alembic reads them as parameters when it prints the script.

-- Ids compare byte for byte, whatever the database's own collation is, so that pages and ties have one order.
-- The tenant '' means no tenant: NULL would switch the composite foreign key off.
CREATE TABLE {schema}.graph_versions (
    tenant       text COLLATE "C" NOT NULL DEFAULT '' CHECK (length(tenant) <= 255),
    graph_id     text COLLATE "C" NOT NULL CHECK (length(graph_id) BETWEEN 1 AND 255),
    graph_hash   text COLLATE "C" NOT NULL CHECK (octet_length(graph_hash) BETWEEN 1 AND 255),
    document     json NOT NULL,
    published_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, graph_id, graph_hash)
);

CREATE INDEX graph_versions_newest
    ON {schema}.graph_versions (tenant, graph_id, published_at DESC, graph_hash DESC);

-- What a number may be, its type says. The server reads the text of a table's own checks anew for each statement that updates
-- it; those of a type it keeps for the session, and asks only for what is assigned.
CREATE DOMAIN {schema}.counter AS bigint CHECK (VALUE >= 0);
CREATE DOMAIN {schema}.ordinal AS bigint CHECK (VALUE >= 1);

-- A run row stays thin: field values live beside it, so that a commit costs what it changes.
-- Room is left on each page for a HOT update by every retaining commit.
CREATE TABLE {schema}.runs (
    id              text COLLATE "C" PRIMARY KEY,
    tenant          text COLLATE "C" NOT NULL DEFAULT '',
    graph_id        text COLLATE "C" NOT NULL,
    graph_hash      text COLLATE "C" NOT NULL,
    status          text COLLATE "C" NOT NULL,
    step            {schema}.counter NOT NULL,
    checkpoint_seq  {schema}.ordinal NOT NULL,
    event_seq       {schema}.counter NOT NULL,
    checkpoint_type text NOT NULL,
    state           json NOT NULL,
    commit_id       text,
    wake_at         timestamptz,
    -- In which of its tenant's two queues the run stands when it is ready, those in progress (0) or those never begun (1).
    -- Written with `wake_at`, and not by a commit that keeps its claim. A generated column would follow `checkpoint_seq`
    -- with each of these, and be parsed anew for every statement.
    queue           smallint NOT NULL DEFAULT 1,
    claim_token     text COLLATE "C",
    claimed_at      timestamptz,
    redeemed        boolean NOT NULL DEFAULT false,
    claim_attempts  {schema}.counter NOT NULL DEFAULT 0,
    claim_abandons  {schema}.counter NOT NULL DEFAULT 0,
    undelivered     {schema}.counter NOT NULL DEFAULT 0,
    abandon_reason  text,
    poisoned_at     timestamptz,
    poison_reason   text,
    inbox_seq       {schema}.counter NOT NULL DEFAULT 0,
    start_key       text COLLATE "C",
    input_digest    text,
    events_since    timestamptz,
    started_at      timestamptz NOT NULL,
    updated_at      timestamptz NOT NULL,
    finished_at     timestamptz,
    FOREIGN KEY (tenant, graph_id, graph_hash) REFERENCES {schema}.graph_versions
) WITH (fillfactor = 80);

-- Every other legal shape of a run's row. Asked by each insert, and by each update of a column that it reads. A commit that leaves
-- its claim as it is writes none of these: as a check of the table, the rule would cost it a fifth of the server's time. Judged
-- after what other triggers have made of the row.
CREATE FUNCTION {schema}.refuse_illegal_run() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (
        NEW.status IN ('running', 'waiting', 'done', 'failed', 'cancelled')
        -- A running run has exactly one of wake, claim and poison, any other none of them.
        AND num_nonnulls(NEW.wake_at, NEW.claim_token, NEW.poisoned_at) = (NEW.status = 'running')::int
        AND (NEW.finished_at IS NULL) = (NEW.status IN ('running', 'waiting'))
        AND (NEW.claim_token IS NULL) = (NEW.claimed_at IS NULL)
        AND (NEW.claim_token IS NOT NULL OR NOT NEW.redeemed)
        AND (NEW.poisoned_at IS NULL) = (NEW.poison_reason IS NULL)
        AND (NEW.start_key IS NULL) = (NEW.input_digest IS NULL)
        AND octet_length(NEW.id) BETWEEN 1 AND 255
        AND coalesce(length(NEW.claim_token), 1) BETWEEN 1 AND 255
        AND coalesce(length(NEW.start_key), 1) BETWEEN 1 AND 255
    ) IS NOT TRUE THEN
        RAISE check_violation USING
            MESSAGE = 'new row for relation "' || TG_TABLE_NAME || '" violates constraint "' || TG_NAME || '"',
            DETAIL = 'The row has ' || json_build_object(
                'id', left(NEW.id, 255), 'status', left(NEW.status, 255), 'wake_at', NEW.wake_at,
                'claimed_at', NEW.claimed_at, 'redeemed', NEW.redeemed, 'poisoned_at', NEW.poisoned_at,
                'poison_reason', left(NEW.poison_reason, 255), 'start_key', left(NEW.start_key, 255),
                'input_digest', left(NEW.input_digest, 255), 'finished_at', NEW.finished_at
            ),
            SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME, CONSTRAINT = TG_NAME;
    END IF;
    RETURN NULL;
END
$$;
CREATE CONSTRAINT TRIGGER runs_are_legal
    AFTER INSERT OR UPDATE OF
        id, status, wake_at, claim_token, claimed_at, redeemed, poisoned_at, poison_reason, start_key, input_digest,
        finished_at
    ON {schema}.runs FOR EACH ROW EXECUTE FUNCTION {schema}.refuse_illegal_run();
-- Also where rows arrive by replication, as a check would be.
ALTER TABLE {schema}.runs ENABLE ALWAYS TRIGGER runs_are_legal;

CREATE UNIQUE INDEX runs_start_key ON {schema}.runs (tenant, start_key) WHERE start_key IS NOT NULL;

-- What a claim scan reads. Both cover healthy running rows only, so that a scan costs what is due and not what was.
-- No column named here changes in a commit that keeps a young claim (claimed_at is not written, or as it was): those updates
-- stay HOT.
CREATE INDEX runs_ready ON {schema}.runs (wake_at, id)
    WHERE status = 'running' AND poisoned_at IS NULL AND wake_at IS NOT NULL;
CREATE INDEX runs_claimed ON {schema}.runs (claimed_at, id)
    WHERE status = 'running' AND poisoned_at IS NULL AND claimed_at IS NOT NULL;
-- The same when tenants take turns: tenants in the order of a hash, so that a random number finds a random one, and the
-- queues of each; and the claims that each has out. Their conditions differ from those above on purpose: no planner, however
-- badly informed, can answer a question about one tenant from everybody's index, or the other way round.
CREATE INDEX runs_turns ON {schema}.runs (hashtext(tenant), tenant, queue, wake_at, id)
    WHERE wake_at IS NOT NULL AND hashtext(tenant) IS NOT NULL;
-- A healthy run without a wake is claimed. The token itself, which a redemption changes, stands in no index or condition.
CREATE INDEX runs_claimed_of_tenant ON {schema}.runs (tenant)
    WHERE status = 'running' AND poisoned_at IS NULL AND wake_at IS NULL;
CREATE INDEX runs_poisoned ON {schema}.runs (poisoned_at, id) WHERE poisoned_at IS NOT NULL;

-- Lists, newest first: of one owner, of one owner's graph (the foreign key needs it too), of everybody.
CREATE INDEX runs_of_owner ON {schema}.runs (tenant, started_at DESC, id DESC);
CREATE INDEX runs_of_graph ON {schema}.runs (tenant, graph_id, started_at DESC, id DESC);
CREATE INDEX runs_newest ON {schema}.runs (started_at DESC, id DESC);

-- What pruning reads: by the end of a run, and by the first event that an ended run still has.
CREATE INDEX runs_finished ON {schema}.runs (finished_at, id) WHERE finished_at IS NOT NULL;
CREATE INDEX runs_with_events ON {schema}.runs (events_since, id)
    WHERE finished_at IS NOT NULL AND events_since IS NOT NULL;

-- What belongs to a run lies in the four tables below, written only by statements that have just locked or inserted its row.
-- They have no foreign keys: each would look the run up again for every event of every commit. The triggers that follow see
-- to the rest of what a key would do: nothing is left of a run that is gone, whoever removed it.

-- One row per field that has been replaced. Type json keeps the text exactly; jsonb would reorder keys and refuse NUL.
CREATE TABLE {schema}.run_fields (
    run_id text COLLATE "C" NOT NULL,
    name   text COLLATE "C" NOT NULL,
    value  json NOT NULL,
    PRIMARY KEY (run_id, name)
) WITH (fillfactor = 80);

-- One row per append. The field is its row in run_fields, if any, followed by its chunks in order.
CREATE TABLE {schema}.run_chunks (
    run_id text COLLATE "C" NOT NULL,
    name   text COLLATE "C" NOT NULL,
    seq    bigint NOT NULL,
    items  json NOT NULL,
    PRIMARY KEY (run_id, name, seq)
);

CREATE TABLE {schema}.run_events (
    run_id text COLLATE "C" NOT NULL,
    seq    bigint NOT NULL,
    type   text NOT NULL,
    step   bigint NOT NULL,
    at     timestamptz NOT NULL,
    node   text,
    data   json NOT NULL,
    PRIMARY KEY (run_id, seq)
);

-- Results of detached attempts, until the run's next moment folds them in. An attempt is answered once.
CREATE TABLE {schema}.run_inbox (
    run_id     text COLLATE "C" NOT NULL,
    seq        {schema}.ordinal NOT NULL,
    kind       text NOT NULL,
    attempt    text COLLATE "C" NOT NULL,
    body       json NOT NULL,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (run_id, seq),
    UNIQUE (run_id, attempt, kind)
);

-- The ids as an array, so that no estimate turns a few of them into a walk over a whole table. With the owner's rights, like
-- a foreign key's cascade. The schema is the one that the table has by then: it may have been renamed.
CREATE FUNCTION {schema}.forget_runs() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    ids text[] = ARRAY(SELECT id FROM gone);
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['run_events', 'run_fields', 'run_chunks', 'run_inbox'] LOOP
        EXECUTE 'DELETE FROM ' || quote_ident(TG_TABLE_SCHEMA) || '.' || name || ' WHERE run_id = ANY ($1)' USING ids;
    END LOOP;
    RETURN NULL;
END
$$;
CREATE TRIGGER runs_are_forgotten AFTER DELETE ON {schema}.runs
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION {schema}.forget_runs();

CREATE FUNCTION {schema}.forget_all_runs() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['run_events', 'run_fields', 'run_chunks', 'run_inbox'] LOOP
        EXECUTE 'TRUNCATE ' || quote_ident(TG_TABLE_SCHEMA) || '.' || name;
    END LOOP;
    RETURN NULL;
END
$$;
CREATE TRIGGER runs_are_all_forgotten AFTER TRUNCATE ON {schema}.runs
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.forget_all_runs();

-- Asked of whoever makes a trigger, not of whoever sets it off: with this right, a trigger on a table of one's own would
-- remove what belongs to any run.
REVOKE EXECUTE ON FUNCTION {schema}.forget_runs, {schema}.forget_all_runs FROM PUBLIC;

CREATE TABLE {schema}.worker_slots (
    worker     text COLLATE "C" PRIMARY KEY CHECK (length(worker) BETWEEN 1 AND 255),
    slots      integer NOT NULL CHECK (slots >= 0),
    orphan_ttl interval NOT NULL,
    seen_at    timestamptz NOT NULL,
    expires_at timestamptz NOT NULL
);

-- The gate that scans pass one at a time. The counter tells a scan whether another one ended since it began.
CREATE TABLE {schema}.dispatch (
    id           integer PRIMARY KEY CHECK (id = 1),
    last_scan_at timestamptz,
    scans        bigint NOT NULL DEFAULT 0
);

INSERT INTO {schema}.dispatch (id) VALUES (1);

-- Where scans meet that count a tenant's claims against its cap. Written by such scans alone, with the first of a tenant.
CREATE TABLE {schema}.tenant_turns (
    tenant text COLLATE "C" PRIMARY KEY,
    scans  bigint NOT NULL DEFAULT 0
)
