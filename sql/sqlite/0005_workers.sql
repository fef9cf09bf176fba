-- tandemq 0005 for SQLite: the same as sql/mysql, where it is explained.

ALTER TABLE tandemq_workers ADD COLUMN options TEXT NOT NULL DEFAULT '';
ALTER TABLE tandemq_workers ADD COLUMN busy INTEGER NOT NULL DEFAULT 0;

CREATE TABLE IF NOT EXISTS tandemq_kills (
  lease_token  INTEGER NOT NULL,
  task_id      INTEGER NOT NULL,
  requested_at TEXT    NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'),
  PRIMARY KEY (lease_token, task_id)
) WITHOUT ROWID;
