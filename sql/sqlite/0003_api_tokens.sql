-- tandemq 0003 for SQLite: the same table and columns as sql/mysql, where they are explained.

CREATE TABLE IF NOT EXISTS tandemq_api_tokens (
  id           TEXT NOT NULL PRIMARY KEY,
  name         TEXT NOT NULL,
  roles        TEXT NOT NULL,
  hash         TEXT NOT NULL,
  rate         REAL NOT NULL DEFAULT 0,
  created_at   TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'),
  created_by   TEXT NOT NULL DEFAULT '',
  expires_at   TEXT NOT NULL DEFAULT '9999-12-31 00:00:00.000000',
  revoked_at   TEXT NOT NULL DEFAULT '1970-01-01 00:00:00.000000',
  last_used_at TEXT NOT NULL DEFAULT '1970-01-01 00:00:00.000000'
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS tandemq_live_tokens ON tandemq_api_tokens (revoked_at, expires_at);
