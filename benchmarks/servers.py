"""The private servers of a benchmark run: MariaDB, Redis and, for the peers that live there, PostgreSQL."""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.servers import MySQLServer, RedisServer, Server, find
from tests.servers.process import base_folder

#: Both databases get the same memory for pages and a redo log that no run fills: neither waits for a checkpoint.
MARIADB_OPTIONS = ("--innodb-buffer-pool-size=1G", "--innodb-log-file-size=1G")
POSTGRES_OPTIONS = {
    "shared_buffers": "1GB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "15min",
    "wal_level": "minimal",  # as MariaDB runs without a binlog
    "max_wal_senders": "0",
    "wal_buffers": "16MB",
    "work_mem": "16MB",
    "maintenance_work_mem": "128MB",
    "effective_cache_size": "4GB",
    "random_page_cost": "1.1",
    "effective_io_concurrency": "200",
    "jit": "off",
    "max_connections": "200",
    # Durable, as tandemq's INSERT is: the defaults, spelled out because the comparison rests on them.
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
}
INSTALL_POSTGRES = "apt-get install -y --no-remove postgresql"


class MissingPostgres(RuntimeError):
    """No postgres, initdb or psql on this machine; the message names the command to install them."""


def postgres_bin() -> Path:
    """The folder with postgres, initdb and psql: the newest of Debian's, or the one on PATH."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: int(p.parent.name), reverse=True)
    if (on_path := find("postgres")) is not None:
        folders.append(on_path.resolve().parent)
    for folder in folders:
        if all((folder / name).exists() for name in ("postgres", "initdb", "psql")):
            return folder
    raise MissingPostgres(f"no PostgreSQL here: {INSTALL_POSTGRES}")


class PostgresServer(Server):
    """A private postgres, as an unprivileged user when we are root (it refuses to run as root)."""

    def __init__(self) -> None:
        self.bin = postgres_bin()
        super().__init__("pg")
        self.data = self.folder / "data"
        self._numbers = itertools.count(1)
        self._user = _unprivileged() if os.geteuid() == 0 else None
        if self._user is not None:
            base_folder().chmod(0o711)  # to pass through, not to look into
            os.chown(self.folder, self._user.pw_uid, self._user.pw_gid)
        initdb = [str(self.bin / "initdb"), "-D", str(self.data), "-U", "bench", "-A", "trust", "-E", "UTF8"]
        done = subprocess.run(
            [*self._as_user(), *initdb, "--no-locale", "--no-sync"],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"initdb failed:\n{done.stderr[-2000:]}")

    def _as_user(self) -> list[str]:
        # setpriv and not runuser: it does not stay in between, so the pid is the postmaster's.
        if self._user is None:
            return []
        return ["setpriv", f"--reuid={self._user.pw_uid}", f"--regid={self._user.pw_gid}", "--clear-groups", "--"]

    def command(self) -> list[str]:
        """See ``Server``."""
        settings = {
            **POSTGRES_OPTIONS,
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self.folder),
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [*self._as_user(), str(self.bin / "postgres"), "-D", str(self.data), *options]

    def ping(self) -> bool:
        """See ``Server``."""
        with contextlib.suppress(RuntimeError):
            return self.sql("SELECT 1") == [("1",)]
        return False

    def url(self, database: str) -> str:
        """postgresql:// URL of a database of this server."""
        return f"postgresql://bench@127.0.0.1:{self.port}/{database}"

    def sql(self, statement: str, database: str = "postgres") -> list[tuple[str, ...]]:
        """Run one statement through psql; its rows as texts."""
        psql = [str(self.bin / "psql"), "-XAtq", "-F", "\t", "-v", "ON_ERROR_STOP=1", "-d", self.url(database)]
        done = subprocess.run([*psql, "-c", statement], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{statement!r} failed: {done.stderr[-2000:]}")
        return [tuple(line.split("\t")) for line in done.stdout.splitlines()]

    def create_database(self) -> str:
        """A new empty database; its name."""
        name = f"bench_{next(self._numbers)}"
        self.sql(f"CREATE DATABASE {name}")
        return name

    def drop_database(self, name: str) -> None:
        """Drop it, whoever still holds it open."""
        self.sql(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def discard(self) -> None:
        """Shut down fast but in order (a killed postgres leaves shared memory behind), and remove its files."""
        self._end(signal.SIGINT)
        shutil.rmtree(self.folder, ignore_errors=True)


def _unprivileged() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise MissingPostgres("postgres refuses to run as root, and there is no user 'postgres' or 'nobody' to run it as")


class Servers:
    """All of a run, started when first asked for and discarded together."""

    def __init__(self, mariadb_options: Sequence[str] = MARIADB_OPTIONS) -> None:
        self._mariadb_options = mariadb_options
        self._mysql: MySQLServer | None = None
        self._redis: RedisServer | None = None
        self._postgres: PostgresServer | None = None

    @property
    def mysql(self) -> MySQLServer:
        """MariaDB or MySQL, running."""
        if self._mysql is None:
            self._mysql = MySQLServer(*self._mariadb_options)
            self._mysql.start()
        return self._mysql

    @property
    def redis(self) -> RedisServer:
        """Redis, running."""
        if self._redis is None:
            self._redis = RedisServer()
            self._redis.start()
        return self._redis

    @property
    def postgres(self) -> PostgresServer:
        """PostgreSQL, running. MissingPostgres if there is none."""
        if self._postgres is None:
            self._postgres = PostgresServer()
            self._postgres.start()
        return self._postgres

    def discard(self) -> None:
        """Stop and remove those that were started."""
        for server in (self._mysql, self._redis, self._postgres):
            if server is not None:
                server.discard()
