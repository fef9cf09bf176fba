"""MariaDB or MySQL as a private process, or one that runs elsewhere."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pymysql

from tests.servers.process import Server, base_folder
from tests.servers.programs import CACHE, UNPACKED, environment, need

#: TANDEMQ_TEST_DRIVER=mysqldb runs the whole suite on mysqlclient.
DRIVER = os.environ.get("TANDEMQ_TEST_DRIVER", "pymysql")


class MySQLServer(Server):
    """A private mariadbd (or mysqld); ``options`` are further command line options."""

    def __init__(self, *options: str) -> None:
        super().__init__("my", *options)
        self.program = need("mariadbd", "mysqld")
        self.data = self.folder / "data"
        self._numbers = itertools.count(1)
        with _template(self.program) as template:
            shutil.copytree(template, self.data)

    def command(self) -> list[str]:
        """See ``Server``."""
        return [
            *_mysql_common(self.program, self.data),
            f"--port={self.port}",
            f"--socket={self.folder / 's'}",
            f"--pid-file={self.folder / 'pid'}",
            f"--tmpdir={self.folder}",
            f"--general-log-file={self.folder / 'general.log'}",
            "--bind-address=127.0.0.1",
            "--max-connections=400",
            "--innodb-buffer-pool-size=128M",
            "--innodb-flush-log-at-trx-commit=1",
            "--performance-schema=OFF",
            "--skip-log-bin",
            "--loose-mysqlx=OFF",
            *self.options,
        ]

    def ping(self) -> bool:
        """See ``Server``."""
        try:
            self.connect(connect_timeout=2).close()
        except pymysql.MySQLError:
            return False
        return True

    def url(self, database: str = "") -> str:
        """SQLAlchemy URL of a database of this server."""
        return f"mysql+{DRIVER}://root@127.0.0.1:{self.port}/{database}"

    @property
    def login(self) -> dict[str, Any]:
        """What PyMySQL needs to log in."""
        return {"host": "127.0.0.1", "port": self.port, "user": "root"}

    @property
    def address(self) -> tuple[str, int]:
        """Host and port, for a proxy."""
        return self.login["host"], self.login["port"]

    def connect(self, database: str | None = None, **options: Any) -> pymysql.Connection[Any]:
        """A plain PyMySQL connection; autocommit is on unless told otherwise."""
        defaults = {"autocommit": True, "charset": "utf8mb4", "database": database}
        return pymysql.connect(**{**self.login, **defaults, **options})

    def sql(self, statement: str, args: Any = None, database: str | None = None) -> list[tuple[Any, ...]]:
        """Run one statement on a connection of its own; its rows as tuples."""
        connection = self.connect(database)
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement, args)
                return list(cursor.fetchall())
        finally:
            connection.close()

    def create_database(self) -> str:
        """A new empty database; its name."""
        name = f"tq_{os.getpid()}_{next(self._numbers)}"
        self.sql(f"CREATE DATABASE {name}")
        return name

    def drop_database(self, name: str) -> None:
        """Drop it, even while a client that a test left behind still holds it open."""
        mine = self.sql("SELECT id FROM information_schema.processlist WHERE db = %s", (name,))
        for (thread,) in mine:
            with contextlib.suppress(pymysql.MySQLError):
                self.sql(f"KILL {thread}")
        self.sql(f"DROP DATABASE IF EXISTS {name}")

    def general_log(self, on: bool) -> None:
        """Switch the general log on (emptied first) or off."""
        if on:
            (self.folder / "general.log").write_bytes(b"")
        self.sql(f"SET GLOBAL general_log = {'ON' if on else 'OFF'}")

    def read_general_log(self) -> str:
        """What the general log holds."""
        return (self.folder / "general.log").read_text(encoding="utf-8", errors="replace")


class ExternalMySQL(MySQLServer):
    """A server that runs elsewhere: databases can be made in it, but it cannot be stopped."""

    def __init__(self, url: str) -> None:
        self.parts = urlsplit(url)
        self._numbers = itertools.count(1)

    def url(self, database: str = "") -> str:
        """See ``MySQLServer``."""
        scheme = f"mysql+{DRIVER}" if "TANDEMQ_TEST_DRIVER" in os.environ else self.parts.scheme
        return self.parts._replace(scheme=scheme, path=f"/{database}").geturl()

    @property
    def login(self) -> dict[str, Any]:
        """See ``MySQLServer``."""
        named = {"host": self.parts.hostname or "127.0.0.1", "port": self.parts.port or 3306}
        user, password = unquote(self.parts.username or "root"), unquote(self.parts.password or "")
        return {**named, "user": user, "password": password}

    def create_database(self) -> str:
        """See ``MySQLServer``."""
        name = f"tq_test_{os.getpid()}_{random.SystemRandom().randrange(10**6)}_{next(self._numbers)}"
        self.sql(f"CREATE DATABASE {name}")
        return name


def _is_mariadb(program: Path) -> bool:
    done = subprocess.run(
        [program, "--no-defaults", "--version"], env=environment(program), capture_output=True, text=True, check=True
    )
    return "MariaDB" in done.stdout


def _mysql_common(program: Path, data: Path) -> list[str]:
    command = [str(program), "--no-defaults", f"--datadir={data}", "--loose-innodb-log-file-size=32M"]
    if program.is_relative_to(UNPACKED):
        share = UNPACKED / "usr/share/mysql"
        command += [f"--basedir={UNPACKED / 'usr'}", f"--lc-messages-dir={share}"]
        command += [f"--character-sets-dir={share / 'charsets'}", f"--plugin-dir={UNPACKED / 'usr/lib/mysql/plugin'}"]
    if not _is_mariadb(program):
        command += ["--secure-file-priv=NULL"]
    if os.geteuid() == 0:
        command += ["--user=root"]
    return command


@contextlib.contextmanager
def _template(program: Path) -> Iterator[Path]:
    """A data folder as the server's own installer makes it: made once, kept, and copied for every server."""
    stat = program.stat()
    folder = CACHE / f"template-{os.geteuid()}-{stat.st_size}-{int(stat.st_mtime)}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            fresh = Path(tempfile.mkdtemp(prefix="template-", dir=base_folder()))
            _initialise(program, fresh)
            partial = folder.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            shutil.copytree(fresh, partial)
            partial.rename(folder)
        yield folder


def _initialise(program: Path, data: Path) -> None:
    common = _mysql_common(program, data)
    if _is_mariadb(program):
        installer = need("mariadb-install-db", "mysql_install_db")
        command = [str(installer), *common[1:], "--auth-root-authentication-method=normal", "--skip-test-db"]
    else:
        shutil.rmtree(data)
        command = [*common, "--initialize-insecure"]
    done = subprocess.run(
        command, env=environment(program), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{command} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
