-- tandemq 0002 for SQLite: the same tables and columns as sql/mysql, where they are explained.

CREATE TABLE IF NOT EXISTS tandemq_replay_runs (
  id           INTEGER PRIMARY KEY AUTOINCREMENT,
  state        TEXT    NOT NULL,
  created_by   TEXT    NOT NULL DEFAULT '',
  reason       TEXT    NOT NULL,
  selection    TEXT    NOT NULL,
  orders       TEXT    NOT NULL,
  wave_at      TEXT    NOT NULL,
  select_below INTEGER NOT NULL DEFAULT 9223372036854775807,
  selected     INTEGER NOT NULL DEFAULT 0,
  moved        INTEGER NOT NULL DEFAULT 0,
  skipped      INTEGER NOT NULL DEFAULT 0,
  failed       INTEGER NOT NULL DEFAULT 0,
  note         TEXT    NOT NULL,
  resume       TEXT    NOT NULL DEFAULT '',
  watch_from   TEXT    NOT NULL DEFAULT '1970-01-01 00:00:00.000000',
  wait_until   TEXT    NOT NULL DEFAULT '1970-01-01 00:00:00.000000',
  audit_id     INTEGER NOT NULL DEFAULT 0,
  holder       TEXT    NOT NULL DEFAULT '',
  held_until   TEXT    NOT NULL DEFAULT '1970-01-01 00:00:00.000000',
  created_at   TEXT    NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'),
  updated_at   TEXT    NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'),
  ended_at     TEXT    NOT NULL DEFAULT '1970-01-01 00:00:00.000000'
);

CREATE INDEX IF NOT EXISTS tandemq_replay_of_state ON tandemq_replay_runs (state, id);

CREATE TABLE IF NOT EXISTS tandemq_replay_items (
  run_id     INTEGER NOT NULL,
  task_id    INTEGER NOT NULL,
  outcome    TEXT    NOT NULL DEFAULT 'waiting',
  is_canary  INTEGER NOT NULL DEFAULT 0,
  replays    INTEGER NOT NULL DEFAULT 0,
  note       TEXT    NOT NULL DEFAULT '',
  updated_at TEXT    NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'),
  PRIMARY KEY (run_id, task_id)
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS tandemq_outcomes ON tandemq_replay_items (run_id, outcome, task_id);

CREATE TABLE IF NOT EXISTS tandemq_audit_log (
  id      INTEGER PRIMARY KEY AUTOINCREMENT,
  at      TEXT    NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'),
  who     TEXT    NOT NULL,
  action  TEXT    NOT NULL,
  task_id INTEGER NOT NULL DEFAULT 0,
  run_id  INTEGER NOT NULL DEFAULT 0,
  n       INTEGER NOT NULL DEFAULT 1,
  details TEXT    NOT NULL,
  reason  TEXT    NOT NULL
);

CREATE INDEX IF NOT EXISTS tandemq_audit_of_task ON tandemq_audit_log (task_id);

ALTER TABLE tandemq_queues ADD COLUMN policy TEXT NULL;
