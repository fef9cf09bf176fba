-- tandemq 0005: what a worker says of itself, and running tasks that are worth a process. Touches no table that is big.
--
-- Workers of the version before go on beside it: they say nothing of the new columns, and ask a killed task only to stop.

-- How it was started, beyond the other columns: '' or words like 'fair'. And how many of its slots run a task just now.
ALTER TABLE tandemq_workers ADD COLUMN options VARCHAR(255) NOT NULL DEFAULT '';
ALTER TABLE tandemq_workers ADD COLUMN busy INT NOT NULL DEFAULT 0;

-- Cancelled while it runs, and to be ended with its process if it does not stop. A row counts for one lease only: a later run of
-- the same task has another token. Read by a supervisor only for tasks that have a cancel request; old rows go with the next kill.
CREATE TABLE IF NOT EXISTS tandemq_kills (
  lease_token  BIGINT UNSIGNED NOT NULL,
  task_id      BIGINT UNSIGNED NOT NULL,
  requested_at DATETIME(6)     NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
  PRIMARY KEY (lease_token, task_id)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
