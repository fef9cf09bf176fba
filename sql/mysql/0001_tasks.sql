-- tandemq 0001: everything a queue needs. MySQL 8.0.13+, MariaDB 10.6+.
--
-- Takes no lock on tables that exist already. Every statement may be run again: a run that was cut goes on where it stopped.
-- All times are UTC with microseconds, in DATETIME(6) (a TIMESTAMP ends in 2038 and follows the session's zone).
-- Sentinels instead of NULL keep the rows of fixed width, so that claim and finish never grow a row:
-- '1970-01-01' = has not happened yet, '9999-12-31' = never, '' = none. The view tandemq_tasks_view shows NULL instead.

-- Which of these files have been applied. Made first: with it, the other tables are known to be tandemq's.
CREATE TABLE IF NOT EXISTS tandemq_migrations (
  name       VARCHAR(100) NOT NULL,
  applied_at DATETIME(6)  NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
  PRIMARY KEY (name)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- One row per task. Other programs may enqueue with  INSERT INTO tandemq_tasks (task_type, payload) VALUES ('name', '{}');
-- Do not add an index on status, worker_id, lease_token, attempts, started_at or updated_at: the claim writes these, and each
-- such index costs about a third of the throughput. Do not add foreign keys: they deadlock with the finishing batches.
CREATE TABLE IF NOT EXISTS tandemq_tasks (
  id                  BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
  -- 0 pending or running, 1 succeeded, 2 dead, 3 cancelled: changes once, at the end, and leads the only secondary index.
  ended               TINYINT         NOT NULL DEFAULT 0,
  queue               VARCHAR(64)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT 'default',
  task_type           VARCHAR(100)    CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  -- A JSON object as text: a JSON column would reorder keys and round big numbers.
  payload             MEDIUMTEXT      NOT NULL,
  -- JSON object or '': what an enqueue sets beyond columns (timeout, backoff).
  options             TEXT            NOT NULL DEFAULT (''),
  -- Higher runs first: low 0, medium 10, high 20, critical 30, or any integer from -1000 to 1000.
  priority            SMALLINT        NOT NULL DEFAULT 0,
  status              ENUM('pending', 'running', 'succeeded', 'dead', 'cancelled') NOT NULL DEFAULT 'pending',
  -- Runs begun in this life (a replay starts a new life); runs allowed are 1 + max_retries.
  attempts            INT             NOT NULL DEFAULT 0,
  max_retries         INT             NOT NULL DEFAULT 3,
  replays             INT             NOT NULL DEFAULT 0,
  -- Rises by one at every claim and never falls: effects outside the database are fenced by it.
  fence               BIGINT          NOT NULL DEFAULT 0,
  -- Proof of the last claim, random, compared for equality only, never cleared (status says whether it is live).
  lease_token         BIGINT UNSIGNED NOT NULL DEFAULT 0,
  worker_id           CHAR(48)        NOT NULL DEFAULT '',
  -- Compared byte for byte; belongs to its row as long as the row exists.
  idempotency_key     VARBINARY(255)  NULL,
  run_at              DATETIME(6)     NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
  -- Not started by then, the task ends dead (expired).
  expires_at          DATETIME(6)     NOT NULL DEFAULT '9999-12-31 00:00:00.000000',
  cancel_requested_at DATETIME(6)     NOT NULL DEFAULT '1970-01-01 00:00:00.000000',
  result              MEDIUMTEXT      NULL,
  last_error          MEDIUMTEXT      NULL,
  error_type          VARCHAR(200)    NOT NULL DEFAULT '',
  dead_reason         ENUM('', 'retries_exhausted', 'non_retryable', 'timeout', 'lease_lost', 'interrupted', 'validation',
                           'unknown_task', 'expired') NOT NULL DEFAULT '',
  created_at          DATETIME(6)     NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
  started_at          DATETIME(6)     NOT NULL DEFAULT '1970-01-01 00:00:00.000000',
  completed_at        DATETIME(6)     NOT NULL DEFAULT '1970-01-01 00:00:00.000000',
  updated_at          DATETIME(6)     NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
  PRIMARY KEY (id),
  UNIQUE KEY idempotency_key (idempotency_key),
  KEY open_rows (ended, queue, priority, run_at)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- One row per claimed batch, written with the claim and gone with its last finish. The lease ends here and nowhere else.
CREATE TABLE IF NOT EXISTS tandemq_claims (
  lease_token BIGINT UNSIGNED NOT NULL,
  worker_id   CHAR(48)        NOT NULL,
  expires_at  DATETIME(6)     NOT NULL,
  ids         MEDIUMTEXT      CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  PRIMARY KEY (lease_token)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- One row per attempt that did not succeed; outcome 'fenced' is a verdict that came after its lease was lost.
CREATE TABLE IF NOT EXISTS tandemq_task_attempts (
  task_id    BIGINT UNSIGNED NOT NULL,
  fence      BIGINT          NOT NULL,
  outcome    VARCHAR(32)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  attempt    INT             NOT NULL,
  replays    INT             NOT NULL,
  worker_id  CHAR(48)        NOT NULL DEFAULT '',
  started_at DATETIME(6)     NOT NULL,
  ended_at   DATETIME(6)     NOT NULL,
  error_type VARCHAR(200)    NOT NULL DEFAULT '',
  error      MEDIUMTEXT      NOT NULL,
  traceback  MEDIUMTEXT      NOT NULL,
  PRIMARY KEY (task_id, fence, outcome)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- What operators decide about a queue; a queue without a row has no such decision.
CREATE TABLE IF NOT EXISTS tandemq_queues (
  queue       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  max_retries INT         NULL,
  updated_at  DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
  PRIMARY KEY (queue)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- One row per process start of a worker.
CREATE TABLE IF NOT EXISTS tandemq_workers (
  id           CHAR(48)     NOT NULL,
  name         VARCHAR(255) NOT NULL,
  host         VARCHAR(255) NOT NULL,
  pid          BIGINT       NOT NULL,
  queues       TEXT         NOT NULL,
  slots        INT          NOT NULL,
  processes    INT          NOT NULL,
  state        VARCHAR(32)  NOT NULL,
  started_at   DATETIME(6)  NOT NULL,
  heartbeat_at DATETIME(6)  NOT NULL,
  PRIMARY KEY (id)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- How many tasks ended (or were retried) per hour. Several shards per key keep rows from being hot: SUM(n) when reading.
CREATE TABLE IF NOT EXISTS tandemq_task_counts (
  queue     VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  task_type VARCHAR(100) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  hour      DATETIME(6)  NOT NULL,
  outcome   VARCHAR(32)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  shard     SMALLINT     NOT NULL,
  n         BIGINT       NOT NULL,
  PRIMARY KEY (queue, task_type, hour, outcome, shard)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Who runs a role (mover, reconciler) for now. Only saves work: two at once are harmless.
CREATE TABLE IF NOT EXISTS tandemq_leaders (
  role       VARCHAR(64)  NOT NULL,
  holder     VARCHAR(255) NOT NULL,
  expires_at DATETIME(6)  NOT NULL,
  PRIMARY KEY (role)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- install_id marks this database in Redis; epoch is how a flushed or restored Redis is noticed.
CREATE TABLE IF NOT EXISTS tandemq_meta (
  name  VARCHAR(64)  NOT NULL,
  value VARCHAR(255) NOT NULL,
  PRIMARY KEY (name)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

INSERT IGNORE INTO tandemq_meta (name, value) VALUES ('install_id', LEFT(SHA2(CONCAT(UUID(), RAND()), 256), 16)), ('epoch', '0');

-- For people: NULL instead of sentinels, the derived state, and the end of the lease.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW tandemq_tasks_view AS
SELECT
  t.id, t.queue, t.task_type, t.payload, NULLIF(t.options, '') AS options, t.priority, t.status,
  CASE WHEN t.status <> 'pending' THEN t.status
       WHEN t.run_at <= UTC_TIMESTAMP(6) THEN 'ready'
       WHEN t.attempts > 0 THEN 'retrying'
       ELSE 'scheduled' END AS state,
  t.attempts, GREATEST(t.attempts - 1, 0) AS retry_count, t.max_retries, t.replays, t.fence,
  NULLIF(t.worker_id, '') AS worker_id, t.idempotency_key, t.run_at,
  CASE WHEN t.status = 'pending' THEN t.run_at END AS next_attempt_at,
  CASE WHEN t.expires_at < '9999-12-31' THEN t.expires_at END AS expires_at,
  CASE WHEN t.cancel_requested_at > '1970-01-01' THEN t.cancel_requested_at END AS cancel_requested_at,
  CASE WHEN t.status = 'running' THEN t.started_at END AS claimed_at,
  CASE WHEN t.status = 'running' THEN c.expires_at END AS lease_expires_at,
  t.result, t.last_error AS error, NULLIF(t.error_type, '') AS error_type, NULLIF(t.dead_reason, '') AS dead_reason,
  t.created_at,
  CASE WHEN t.started_at > '1970-01-01' THEN t.started_at END AS started_at,
  CASE WHEN t.completed_at > '1970-01-01' THEN t.completed_at END AS completed_at,
  t.updated_at
FROM tandemq_tasks t LEFT JOIN tandemq_claims c ON c.lease_token = t.lease_token;
