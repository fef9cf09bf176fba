-- tandemq 0003: tokens of the HTTP API. A new table; nothing else is touched.
--
-- Workers and producers of the version before go on beside it: they neither read nor write it.

-- One row per token ever made; the text that a client sends is tq_<id>_<secret>, and no row holds the secret.
CREATE TABLE IF NOT EXISTS tandemq_api_tokens (
  id         VARCHAR(16)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  -- Whose it is, for people. While one token replaces another two live ones have the same name.
  name       VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  -- Of read, produce, work, operate; with commas.
  roles      VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  -- SHA-256 of the secret, in hex. The secret is 256 random bits, which nobody guesses: a slow hash, made for what
  -- people choose themselves, would cost every request and protect nothing.
  hash       CHAR(64)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  -- Requests a second; 0: what the API is started with.
  rate       DOUBLE       NOT NULL DEFAULT 0,
  created_at DATETIME(6)  NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
  created_by VARCHAR(255) NOT NULL DEFAULT '',
  expires_at DATETIME(6)  NOT NULL DEFAULT '9999-12-31 00:00:00.000000',
  revoked_at DATETIME(6)  NOT NULL DEFAULT '1970-01-01 00:00:00.000000',
  -- To a minute or so: may an old one be revoked?
  last_used_at DATETIME(6) NOT NULL DEFAULT '1970-01-01 00:00:00.000000',
  PRIMARY KEY (id),
  -- Every API process reads the live ones once a second.
  KEY live (revoked_at, expires_at)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
