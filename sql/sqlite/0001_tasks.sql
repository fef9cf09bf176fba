-- tandemq 0001 for SQLite 3.35+ (the embedded default): the same tables, columns and sentinels as sql/mysql, where they
-- are explained. Times are text, 'YYYY-MM-DD HH:MM:SS.ffffff' in UTC, so that they sort as instants.

CREATE TABLE IF NOT EXISTS tandemq_migrations (
  name       TEXT NOT NULL PRIMARY KEY,
  applied_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS tandemq_tasks (
  id                  INTEGER PRIMARY KEY AUTOINCREMENT,
  ended               INTEGER NOT NULL DEFAULT 0,
  queue               TEXT    NOT NULL DEFAULT 'default',
  task_type           TEXT    NOT NULL,
  payload             TEXT    NOT NULL,
  options             TEXT    NOT NULL DEFAULT '',
  priority            INTEGER NOT NULL DEFAULT 0,
  status              TEXT    NOT NULL DEFAULT 'pending'
                      CHECK (status IN ('pending', 'running', 'succeeded', 'dead', 'cancelled')),
  attempts            INTEGER NOT NULL DEFAULT 0,
  max_retries         INTEGER NOT NULL DEFAULT 3,
  replays             INTEGER NOT NULL DEFAULT 0,
  fence               INTEGER NOT NULL DEFAULT 0,
  lease_token         INTEGER NOT NULL DEFAULT 0,
  worker_id           TEXT    NOT NULL DEFAULT '',
  idempotency_key     BLOB    NULL UNIQUE,
  run_at              TEXT    NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'),
  expires_at          TEXT    NOT NULL DEFAULT '9999-12-31 00:00:00.000000',
  cancel_requested_at TEXT    NOT NULL DEFAULT '1970-01-01 00:00:00.000000',
  result              TEXT    NULL,
  last_error          TEXT    NULL,
  error_type          TEXT    NOT NULL DEFAULT '',
  dead_reason         TEXT    NOT NULL DEFAULT ''
                      CHECK (dead_reason IN ('', 'retries_exhausted', 'non_retryable', 'timeout', 'lease_lost',
                                             'interrupted', 'validation', 'unknown_task', 'expired')),
  created_at          TEXT    NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'),
  started_at          TEXT    NOT NULL DEFAULT '1970-01-01 00:00:00.000000',
  completed_at        TEXT    NOT NULL DEFAULT '1970-01-01 00:00:00.000000',
  updated_at          TEXT    NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')
);

CREATE INDEX IF NOT EXISTS tandemq_open_rows ON tandemq_tasks (ended, queue, priority, run_at);

CREATE TABLE IF NOT EXISTS tandemq_claims (
  lease_token INTEGER PRIMARY KEY,
  worker_id   TEXT NOT NULL,
  expires_at  TEXT NOT NULL,
  ids         TEXT NOT NULL
);

CREATE TABLE IF NOT EXISTS tandemq_task_attempts (
  task_id    INTEGER NOT NULL,
  fence      INTEGER NOT NULL,
  outcome    TEXT    NOT NULL,
  attempt    INTEGER NOT NULL,
  replays    INTEGER NOT NULL,
  worker_id  TEXT    NOT NULL DEFAULT '',
  started_at TEXT    NOT NULL,
  ended_at   TEXT    NOT NULL,
  error_type TEXT    NOT NULL DEFAULT '',
  error      TEXT    NOT NULL,
  traceback  TEXT    NOT NULL,
  PRIMARY KEY (task_id, fence, outcome)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS tandemq_queues (
  queue       TEXT NOT NULL PRIMARY KEY,
  max_retries INTEGER NULL,
  updated_at  TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS tandemq_workers (
  id           TEXT    NOT NULL PRIMARY KEY,
  name         TEXT    NOT NULL,
  host         TEXT    NOT NULL,
  pid          INTEGER NOT NULL,
  queues       TEXT    NOT NULL,
  slots        INTEGER NOT NULL,
  processes    INTEGER NOT NULL,
  state        TEXT    NOT NULL,
  started_at   TEXT    NOT NULL,
  heartbeat_at TEXT    NOT NULL
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS tandemq_task_counts (
  queue     TEXT    NOT NULL,
  task_type TEXT    NOT NULL,
  hour      TEXT    NOT NULL,
  outcome   TEXT    NOT NULL,
  shard     INTEGER NOT NULL,
  n         INTEGER NOT NULL,
  PRIMARY KEY (queue, task_type, hour, outcome, shard)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS tandemq_leaders (
  role       TEXT NOT NULL PRIMARY KEY,
  holder     TEXT NOT NULL,
  expires_at TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS tandemq_meta (
  name  TEXT NOT NULL PRIMARY KEY,
  value TEXT NOT NULL
) WITHOUT ROWID;

INSERT OR IGNORE INTO tandemq_meta (name, value) VALUES ('install_id', lower(hex(randomblob(8)))), ('epoch', '0');

CREATE VIEW IF NOT EXISTS tandemq_tasks_view AS
SELECT
  t.id, t.queue, t.task_type, t.payload, NULLIF(t.options, '') AS options, t.priority, t.status,
  CASE WHEN t.status <> 'pending' THEN t.status
       WHEN t.run_at <= strftime('%Y-%m-%d %H:%M:%f', 'now') THEN 'ready'
       WHEN t.attempts > 0 THEN 'retrying'
       ELSE 'scheduled' END AS state,
  t.attempts, MAX(t.attempts - 1, 0) AS retry_count, t.max_retries, t.replays, t.fence,
  NULLIF(t.worker_id, '') AS worker_id, t.idempotency_key, t.run_at,
  CASE WHEN t.status = 'pending' THEN t.run_at END AS next_attempt_at,
  CASE WHEN t.expires_at < '9999-12-31' THEN t.expires_at END AS expires_at,
  CASE WHEN t.cancel_requested_at >= '1970-01-02' THEN t.cancel_requested_at END AS cancel_requested_at,
  CASE WHEN t.status = 'running' THEN t.started_at END AS claimed_at,
  CASE WHEN t.status = 'running' THEN c.expires_at END AS lease_expires_at,
  t.result, t.last_error AS error, NULLIF(t.error_type, '') AS error_type, NULLIF(t.dead_reason, '') AS dead_reason,
  t.created_at,
  CASE WHEN t.started_at >= '1970-01-02' THEN t.started_at END AS started_at,
  CASE WHEN t.completed_at >= '1970-01-02' THEN t.completed_at END AS completed_at,
  t.updated_at
FROM tandemq_tasks t LEFT JOIN tandemq_claims c ON c.lease_token = t.lease_token;
