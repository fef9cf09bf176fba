-- tandemq 0002: replay runs, the audit log, retry policies of queues. Touches no table that is big.
--
-- Workers of the version before go on beside it: nothing that they read or write has changed.

-- One row per replay of many dead letters: what was asked for, how far it has come, why it stopped.
CREATE TABLE IF NOT EXISTS tandemq_replay_runs (
  id          BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
  -- selecting, canary, waiting, running, paused, done, cancelled
  state       VARCHAR(16)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  created_by  VARCHAR(255)    NOT NULL DEFAULT '',
  reason      TEXT            NOT NULL,
  -- JSON: the filter (or the ids) that select, and what is done (rate, limit, edit, queue, priority, canary, stop_if_failing).
  selection   MEDIUMTEXT      NOT NULL,
  orders      MEDIUMTEXT      NOT NULL,
  -- Only what ended before this instant belongs to the run: what dies again is not taken again.
  wave_at     DATETIME(6)     NOT NULL,
  -- Ids below this one are still to be selected (newest first); 0: all are.
  select_below BIGINT UNSIGNED NOT NULL DEFAULT 9223372036854775807,
  selected    BIGINT          NOT NULL DEFAULT 0,
  moved       BIGINT          NOT NULL DEFAULT 0,
  skipped     BIGINT          NOT NULL DEFAULT 0,
  failed      BIGINT          NOT NULL DEFAULT 0,
  -- Why it is paused or was cancelled, for people.
  note        TEXT            NOT NULL,
  -- The state that a paused run goes on in.
  resume      VARCHAR(16)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
  -- The fuse counts what was moved from this instant on: a run that goes on after it blew is judged anew.
  watch_from  DATETIME(6)     NOT NULL DEFAULT '1970-01-01 00:00:00.000000',
  -- Until then the ends of the canary are waited for.
  wait_until  DATETIME(6)     NOT NULL DEFAULT '1970-01-01 00:00:00.000000',
  -- Its row of the audit log, which grows with each chunk; 0 before the first.
  audit_id    BIGINT UNSIGNED NOT NULL DEFAULT 0,
  -- Who carries it out for now; whoever finds it run out may go on.
  holder      VARCHAR(255)    NOT NULL DEFAULT '',
  held_until  DATETIME(6)     NOT NULL DEFAULT '1970-01-01 00:00:00.000000',
  created_at  DATETIME(6)     NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
  updated_at  DATETIME(6)     NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
  ended_at    DATETIME(6)     NOT NULL DEFAULT '1970-01-01 00:00:00.000000',
  PRIMARY KEY (id),
  -- The reconciler asks for the few that are not over.
  KEY of_state (state, id)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- One row per task of a run.
CREATE TABLE IF NOT EXISTS tandemq_replay_items (
  run_id     BIGINT UNSIGNED NOT NULL,
  task_id    BIGINT UNSIGNED NOT NULL,
  -- waiting, moved, skipped, failed
  outcome    VARCHAR(16)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT 'waiting',
  is_canary  TINYINT         NOT NULL DEFAULT 0,
  -- The task's count of replays once it was moved: which of its lives this run began.
  replays    INT             NOT NULL DEFAULT 0,
  note       VARCHAR(500)    NOT NULL DEFAULT '',
  updated_at DATETIME(6)     NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
  PRIMARY KEY (run_id, task_id),
  KEY outcomes (run_id, outcome, task_id)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Who did what to which tasks, and why, written in the transaction of the change. Rows are only ever added; n of a deed that takes
-- many transactions (a replay run, a pass of retention) grows with each of them.
CREATE TABLE IF NOT EXISTS tandemq_audit_log (
  id        BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
  at        DATETIME(6)     NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
  who       VARCHAR(255)    NOT NULL,
  -- replay, purge, cancel, edit, import, prune, queue_policy, ...
  action    VARCHAR(32)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  -- 0: not about one task (or run).
  task_id   BIGINT UNSIGNED NOT NULL DEFAULT 0,
  run_id    BIGINT UNSIGNED NOT NULL DEFAULT 0,
  n         BIGINT          NOT NULL DEFAULT 1,
  -- JSON: the filter, what was edited, and what else belongs to it.
  details   MEDIUMTEXT      NOT NULL,
  reason    TEXT            NOT NULL,
  PRIMARY KEY (id),
  KEY of_task (task_id)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- JSON of the retry policy of a queue's tasks (backoff, jitter, max_age) where an operator set one.
ALTER TABLE tandemq_queues ADD COLUMN policy TEXT NULL;
