-- tandemq 0004: queues and task types that operators have paused. Touches no table that is big.
--
-- Workers of the version before go on beside it, but they do not know of pauses: a pause holds once all workers are of this one.

-- What is paused: nothing of it begins. Looked at by every worker once a second, so it is kept small: what is over is removed.
CREATE TABLE IF NOT EXISTS tandemq_pauses (
  -- queue, type
  kind      VARCHAR(8)      CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  name      VARCHAR(100)    CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  since     DATETIME(6)     NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
  -- It ends by itself then.
  until_at  DATETIME(6)     NOT NULL DEFAULT '9999-12-31 00:00:00.000000',
  who       VARCHAR(255)    NOT NULL DEFAULT '',
  reason    TEXT            NOT NULL,
  PRIMARY KEY (kind, name)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Tasks of a paused type that a worker met: they wait by run_at, out of everybody's way, and are due when the pause ends.
CREATE TABLE IF NOT EXISTS tandemq_held (
  task_type  VARCHAR(100)    CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  task_id    BIGINT UNSIGNED NOT NULL,
  -- What it had, for the order at the end, and what it was given: a row whose run_at is another by now was moved by somebody else and is left alone.
  run_at     DATETIME(6)     NOT NULL,
  held_until DATETIME(6)     NOT NULL,
  PRIMARY KEY (task_type, task_id)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
