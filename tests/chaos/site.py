"""Where a chaos run takes place: two servers, the proxies before them, the processes of the product, one folder.

Handlers' effects, the checks and the nemesis itself reach the servers directly, as root; the product goes through the
proxies, as a user without special rights.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pymysql

from tandemq.core.settings import Settings
from tandemq.store.migrate import migrate
from tests.chaos.effects import Effects
from tests.chaos.ledger import Ledger
from tests.chaos.tasks import LINKS
from tests.proxy import Proxy
from tests.servers import ExternalMySQL, MySQLServer, RedisServer
from tests.workers import ROOT, environment

APP = "tests.chaos.tasks:app"
HOSTS = ("%", "localhost")
#: Short, so that what they are for happens often; a drain takes a few of them.
PACE = {
    "lease_s": 2.0, "heartbeat_s": 0.5, "reconcile_s": 0.3, "mover_s": 0.1, "grace_s": 1.0, "unknown_task_s": 3.0,
}  # fmt: skip
_REF = re.compile(r'"ref": ?"([^"]+)"')


class Process:
    """One process of the product, in a group of its own; ``marks`` is where its crash points leave their marks."""

    def __init__(self, name: str, command: list[str], env: dict[str, str], log: Path, marks: Path) -> None:
        self.name, self.log, self.marks = name, log, marks
        with log.open("ab") as out:
            self.popen = subprocess.Popen(
                command, cwd=ROOT, env=env, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True
            )

    @property
    def alive(self) -> bool:
        return self.popen.poll() is None

    def children(self) -> list[psutil.Process]:
        """Its child processes that run handlers."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return [p for p in psutil.Process(self.popen.pid).children() if "tandemq.child" in " ".join(p.cmdline())]
        return []

    def ready(self, timeout_s: float = 30.0) -> bool:
        """Wait until it says that it has started, and a worker has children."""
        return wait(lambda: not self.alive or self.says(b" starts: "), timeout_s) and self.alive

    def says(self, text: bytes) -> bool:
        """Whether its log holds this."""
        return text in self.log.read_bytes()

    def signal(self, number: signal.Signals, *, group: bool = True) -> bool:
        """To all of its group, or to it alone; False if it is gone."""
        try:
            (os.killpg if group else os.kill)(self.popen.pid, number)
        except ProcessLookupError:
            return False
        return True

    def kill(self) -> bool:
        """SIGKILL to all of its group; whether there was something to kill."""
        there = self.signal(signal.SIGKILL)
        self.popen.wait()
        return there

    def hits(self) -> list[str]:
        """The crash points that it (or a child of it) has reached."""
        return [path.name.rsplit(".", 2)[0] for path in self.marks.iterdir()] if self.marks.exists() else []


def wait(predicate: Any, timeout_s: float, every_s: float = 0.02) -> bool:
    """Whether it came true in time."""
    deadline = time.monotonic() + timeout_s
    while not predicate():
        if time.monotonic() > deadline:
            return False
        time.sleep(every_s)
    return True


class Site:
    """Opened once per run; ``close`` ends everything that it has started."""

    def __init__(self, mysql: MySQLServer, redis: RedisServer, folder: Path, **changes: Any) -> None:
        self.mysql, self.redis, self.folder = mysql, redis, folder
        self.ledger_folder, self.logs = folder / "ledger", folder / "logs"
        for made in (self.ledger_folder, self.logs):
            made.mkdir(parents=True, exist_ok=True)
        self.database, self.effects_database = mysql.create_database(), mysql.create_database()
        self.mysql_proxy = Proxy(*mysql.address)
        self.redis_proxy = Proxy("127.0.0.1", redis.port)
        #: Producers have one of their own, so that they can be led to another Redis than the workers.
        self.producers_proxy = Proxy("127.0.0.1", redis.port)
        self.user = f"chaos_{self.database[-20:]}"
        self._make_user()
        self.effects = Effects(self._url(mysql.address, self.effects_database, scheme="mysql"))
        self.effects.create()
        self.settings = Settings.load(
            {},
            database_url=self._url(("127.0.0.1", self.mysql_proxy.port), self.database),
            redis_url=f"redis://127.0.0.1:{self.redis_proxy.port}/0",
            namespace=f"chaos{os.getpid()}.{self.database[-6:]}",
            **{**PACE, **changes},
        )
        migrate(self.settings)
        mysql.sql(LINKS, database=self.database)
        self.ledger = Ledger(self.ledger_folder, "nemesis")
        self.pace(0)
        self._processes: list[Process] = []
        self._lock = threading.Lock()
        self._n = 0

    def _make_user(self) -> None:
        for host in HOSTS:
            self.mysql.sql(f"CREATE USER IF NOT EXISTS '{self.user}'@'{host}' IDENTIFIED BY ''")
            for database in (self.database, self.effects_database):
                self.mysql.sql(f"GRANT ALL ON {database}.* TO '{self.user}'@'{host}'")

    def _url(self, address: tuple[str, int], database: str, scheme: str = "mysql+pymysql") -> str:
        return f"{scheme}://{self.user}@{address[0]}:{address[1]}/{database}"

    @property
    def owns_mysql(self) -> bool:
        """Whether its process can be killed and stopped."""
        return not isinstance(self.mysql, ExternalMySQL)

    # processes

    def start(self, name: str, *command: str, crash: str = "", module: str = "", **extra: str) -> Process:
        """``tandemq COMMAND`` (or ``python -m MODULE COMMAND``), with crash points armed."""
        with self._lock:
            self._n += 1
            label = f"{name}.{self._n}"
        marks = self.folder / "marks" / label
        marks.mkdir(parents=True)
        env = environment(self.settings, CHAOS_FOLDER=str(self.ledger_folder), CHAOS_EFFECTS=self._effects_url, **extra)
        if crash:
            env |= {"TANDEMQ_CRASH": crash, "TANDEMQ_CRASH_DIR": str(marks)}
        how = ["-m", module, *command] if module else ["-m", "tandemq", "-A", APP, *command]
        process = Process(label, [sys.executable, *how], env, self.logs / f"{label}.log", marks)
        with self._lock:
            self._processes.append(process)
        return process

    @property
    def _effects_url(self) -> str:
        return self._url(self.mysql.address, self.effects_database, scheme="mysql")

    def worker(self, name: str, *options: str, crash: str = "", **extra: str) -> Process:
        """A worker of four slots."""
        return self.start(name, "worker", "-c", "4", "--name", name, *options, crash=crash, **extra)

    def producer(self, name: str, seed: str, *, crash: str = "", **extra: str) -> Process:
        """A producer; its refs begin with its label, so no two starts share one."""
        with self._lock:
            label = f"{name}-{self._n}"
        redis_url = f"redis://127.0.0.1:{self.producers_proxy.port}/0"
        return self.start(
            name, label, seed, module="tests.chaos.producer", crash=crash, TANDEMQ_REDIS_URL=redis_url, **extra
        )

    def pace(self, tasks_a_second: float | str) -> None:
        """For all producers together with their number known to whoever calls; ``stop`` ends them."""
        partial = self.ledger_folder / "pace.new"
        partial.write_text(str(tasks_a_second))
        partial.rename(self.ledger_folder / "pace")

    def running(self) -> list[Process]:
        """Those that live."""
        with self._lock:
            self._processes = [p for p in self._processes if p.alive]
            return list(self._processes)

    # looking, with plain SQL on a connection of root's

    def sql(self, statement: str, args: Any = None) -> list[tuple[Any, ...]]:
        """One statement; ``{t}`` is the table prefix."""
        return self.mysql.sql(statement.replace("{t}", self.settings.table_prefix), args, self.database)

    def open_rows(self) -> int | None:
        """Tasks that have not ended; None while the database is away."""
        try:
            return int(self.sql("SELECT COUNT(*) FROM {t}tasks WHERE ended = 0")[0][0])
        except pymysql.MySQLError:
            return None

    def ready_key(self, queue: str = "default", priority: int = 0) -> str:
        """The list of ready ids."""
        return f"{self.settings.namespace}:{{{queue}}}:ready:{priority}"

    def note_finals(self) -> None:
        """Write into the ledger what the servers hold now that all is over."""
        self.ledger.write(self.effects.taken())
        self.ledger.write(self._finals())
        links = self.sql("SELECT chain, n FROM chaos_links")
        self.ledger.write([{"e": "link", "ref": f"{chain}/{n}"} for chain, n in links])

    def _finals(self) -> Iterator[dict[str, Any]]:
        sql = "SELECT id, payload, status, attempts, fence, result, dead_reason, last_error FROM {t}tasks WHERE id > %s"
        last, page = 0, 20_000
        while rows := self.sql(f"{sql} ORDER BY id LIMIT {page}", (last,)):
            last = rows[-1][0]
            for task_id, payload, status, attempts, fence, result, reason, error in rows:
                ref = _ref_of(payload)
                if status in {"pending", "running"}:
                    yield {
                        "e": "left",
                        "ref": ref,
                        "where": f"id {task_id} {status}, attempts {attempts}: {error}"[:200],
                    }
                    continue
                by = json.loads(result)["fence"] if result and result.startswith('{"fence"') else None
                state = "done" if status == "succeeded" else status
                why = f"{reason}: {(error or '')[:80]}" if reason else ""
                yield {
                    "e": "final",
                    "ref": ref,
                    "state": state,
                    "attempts": attempts,
                    "fence": fence,
                    "by": by,
                    "why": why,
                }

    # ending

    def close(self) -> None:
        """Kill everything that was started; the servers are the caller's."""
        self.pace("stop")
        for process in self.running():
            process.kill()
        if not self.owns_mysql:
            for database in (self.database, self.effects_database):
                self.mysql.drop_database(database)
            for host in HOSTS:
                self.mysql.sql(f"DROP USER IF EXISTS '{self.user}'@'{host}'")
        for proxy in (self.mysql_proxy, self.redis_proxy, self.producers_proxy):
            proxy.close()

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def _ref_of(payload: str) -> str:
    try:
        body = json.loads(payload)
    except ValueError:
        found = _REF.search(payload)
        return found[1] if found else payload[:60]
    return f"{body['chain']}/{body['n']}" if "chain" in body else str(body.get("ref"))
