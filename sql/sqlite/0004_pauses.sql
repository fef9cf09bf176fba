-- tandemq 0004 for SQLite: the same tables as sql/mysql, where they are explained.

CREATE TABLE IF NOT EXISTS tandemq_pauses (
  kind     TEXT NOT NULL,
  name     TEXT NOT NULL,
  since    TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'),
  until_at TEXT NOT NULL DEFAULT '9999-12-31 00:00:00.000000',
  who      TEXT NOT NULL DEFAULT '',
  reason   TEXT NOT NULL,
  PRIMARY KEY (kind, name)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS tandemq_held (
  task_type  TEXT    NOT NULL,
  task_id    INTEGER NOT NULL,
  run_at     TEXT    NOT NULL,
  held_until TEXT    NOT NULL,
  PRIMARY KEY (task_type, task_id)
) WITHOUT ROWID;
