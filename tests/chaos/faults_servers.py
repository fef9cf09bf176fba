"""What is done to the servers: one method a fault; each ends it again and answers its evidence, "" if there is none."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import psutil
import pymysql
import redis

from tests.chaos.site import Site, wait
from tests.proxy import Proxy
from tests.servers import RedisServer, Server

#: Ids that a restored list holds: a busy queue's.
STALE = 200


class ServerFaults:
    """Redis and MySQL themselves."""

    def __init__(self, site: Site, rng: Random, *, long: bool = False) -> None:
        self._site, self._rng, self._long = site, rng, long

    # Redis

    def redis_killed(self) -> str:
        with self._admin() as client:
            before = client.info("server")["run_id"]
        self._site.redis.kill9()
        time.sleep(self._rng.uniform(0.0, 1.0))
        self._site.redis.start()
        with self._admin() as client:
            return f"{before[:8]} -> {client.info('server')['run_id'][:8]}"

    def flushed(self) -> str:
        keys = 0
        for _ in range(3):
            with self._admin() as client:
                keys += client.dbsize()
                client.flushall()
            time.sleep(self._rng.uniform(0.05, 0.4))
        return f"{keys} keys" if keys else ""

    def delayed_lost(self) -> str:
        with self._admin() as client:
            keys = list(client.scan_iter(f"{self._site.settings.namespace}:*:delayed:*"))
            lost = sum(client.zcard(key) for key in keys)
            if keys:
                client.delete(*keys)
        return f"{lost} ids" if lost else ""

    def old_snapshot(self) -> str:
        """The lists come back with ids that have ended since, and without those that were pushed since."""
        site = self._site
        ids = [row[0] for row in site.sql(f"SELECT id FROM {{t}}tasks ORDER BY id DESC LIMIT {STALE}")]
        with self._admin() as client:
            # One packet: at the moment of the snapshot a busy queue's list holds these.
            pipe = client.pipeline(transaction=False)
            pipe.lpush(site.ready_key(), *ids)
            pipe.execute_command("SAVE")
            pipe.execute()
        dump, kept = site.redis.folder / "dump.rdb", site.folder / "old.rdb"
        shutil.move(dump, kept)
        time.sleep(self._rng.uniform(2.0, 4.0))
        site.redis.kill9()
        shutil.move(kept, dump)
        site.redis.start()
        dump.unlink()
        ended = site.sql(f"SELECT COUNT(*) FROM {{t}}tasks WHERE ended > 0 AND id IN ({','.join(map(str, ids))})")[0][0]
        return f"{ended} ids of ended tasks came back" if ended else ""

    def failover(self) -> str:
        """Producers are led to the new master first, workers a while later; what the old one took meanwhile is gone."""
        site, old = self._site, self._site.redis
        new = RedisServer("--replicaof", "127.0.0.1", str(old.port))
        new.program = old.program
        new.start()
        new.options.clear()  # started anew, it is no replica
        with new.client() as client:
            if not wait(lambda: client.info("replication")["master_link_status"] == "up", 10):
                new.discard()
                return ""
            client.execute_command("REPLICAOF", "NO", "ONE")
        self._lead(site.producers_proxy, new.port)
        time.sleep(self._rng.uniform(0.5, 1.5))
        with old.client() as client:
            behind = client.info("replication")["master_repl_offset"]
        self._lead(site.redis_proxy, new.port)
        site.redis = new
        old.discard()
        return f"the old master was at offset {behind}"

    def out_of_memory(self) -> str:
        with self._admin() as client:
            client.config_set("maxmemory", 1)
            try:
                return self._refused(client, redis.exceptions.OutOfMemoryError)
            finally:
                client.config_set("maxmemory", 0)

    def read_only_replica(self) -> str:
        with self._admin() as client:
            client.execute_command("REPLICAOF", "127.0.0.1", "1")
            try:
                return self._refused(client, redis.exceptions.ReadOnlyError)
            finally:
                client.execute_command("REPLICAOF", "NO", "ONE")

    def no_auth(self) -> str:
        with self._admin() as client:
            client.config_set("requirepass", "secret")
            try:
                self._cut("redis", "producers")
                time.sleep(self._hold_s())
                with self._site.redis.client() as other, contextlib.suppress(redis.exceptions.AuthenticationError):
                    other.ping()
                    return ""
                return "NOAUTH"
            finally:
                client.execute_command("AUTH", "secret")
                client.config_set("requirepass", "")

    def busy(self) -> str:
        with self._admin() as client:
            client.config_set("lua-time-limit", 50)

            def spin() -> None:
                with contextlib.suppress(redis.RedisError), self._site.redis.client(socket_timeout=30) as other:
                    other.eval("while true do end", 0)

            thread = threading.Thread(target=spin, daemon=True)
            thread.start()
            time.sleep(self._hold_s())
            said = ""
            try:
                client.ping()
            except redis.exceptions.ResponseError as busy:
                said = str(busy)[:4]
            with contextlib.suppress(redis.exceptions.ResponseError):
                client.script_kill()
            thread.join(10)
            client.config_set("lua-time-limit", 5000)
            return said

    # MySQL

    def mysql_killed(self) -> str:
        before = self._site.mysql.pid
        self._site.mysql.kill9()
        self._site.mysql.start()
        return f"pid {before} -> {self._site.mysql.pid}"

    def sessions_killed(self) -> str:
        with self._root() as cursor:
            cursor.execute("SELECT id FROM information_schema.processlist WHERE user = %s", (self._site.user,))
            ids = [row[0] for row in cursor.fetchall()]
            for session in ids:
                with contextlib.suppress(pymysql.MySQLError):
                    cursor.execute(f"KILL {session}")
        return f"{len(ids)} sessions" if ids else ""

    def mysql_read_only(self) -> str:
        with self._root() as cursor:
            cursor.execute("SET GLOBAL read_only = 1")
            try:
                time.sleep(self._hold_s())
                return self._code_of("INSERT INTO tandemq_meta (name, value) VALUES ('chaos', '')")
            finally:
                cursor.execute("SET GLOBAL read_only = 0")

    def too_many_connections(self) -> str:
        with self._root() as cursor:
            cursor.execute("SELECT @@max_connections")
            before = cursor.fetchone()[0]
            cursor.execute("SET GLOBAL max_connections = 10")
            try:
                self._cut("mysql")
                with contextlib.ExitStack() as ours:
                    for _ in range(12):
                        try:
                            ours.enter_context(self._as_product())
                        except pymysql.MySQLError as refused:
                            time.sleep(self._hold_s())
                            return f"error {refused.args[0]}"
                return ""
            finally:
                cursor.execute(f"SET GLOBAL max_connections = {before}")

    def rows_locked(self) -> str:
        """A client that sits inside a transaction, longer than innodb_lock_wait_timeout."""
        with self._root() as cursor:
            cursor.execute("BEGIN")
            cursor.execute(
                f"SELECT id FROM {self._site.database}.tandemq_tasks WHERE ended = 0 LIMIT 200 FOR UPDATE SKIP LOCKED"
            )
            rows = len(cursor.fetchall())
            time.sleep(4.0)
            cursor.execute("ROLLBACK")
        return f"{rows} rows" if rows else ""

    def _proxies(self, *names: str) -> list[Proxy]:
        site = self._site
        of = {"mysql": site.mysql_proxy, "redis": site.redis_proxy, "producers": site.producers_proxy}
        return [of[name] for name in names]

    def _cut(self, *names: str) -> int:
        proxies = self._proxies(*names)
        for proxy in proxies:
            proxy.cut()
        return sum(proxy.connections for proxy in proxies)

    @staticmethod
    def _lead(proxy: Proxy, port: int) -> None:
        proxy.target = ("127.0.0.1", port)
        proxy.cut()

    # shared

    def _stopped(self, server: Server) -> str:
        server.sigstop()
        time.sleep(12.0 if self._long else self._rng.uniform(2.5, 4.0))
        state = psutil.Process(server.pid).status()
        server.sigcont()
        return state if state == psutil.STATUS_STOPPED else ""

    def _hold_s(self) -> float:
        return self._rng.uniform(1.0, 2.0)

    @contextmanager
    def _admin(self) -> Iterator[redis.Redis]:
        client = self._site.redis.client(single_connection_client=True, socket_timeout=10)
        try:
            yield client
        finally:
            client.close()

    @contextmanager
    def _root(self) -> Iterator[pymysql.cursors.Cursor]:
        connection = self._site.mysql.connect()
        try:
            yield connection.cursor()
        finally:
            connection.close()

    def _refused(self, client: redis.Redis, error: type[Exception]) -> str:
        time.sleep(self._hold_s())
        try:
            client.set("chaos", 1)
        except error as refused:
            return str(refused)[:40]
        return ""

    def _as_product(self) -> pymysql.Connection[pymysql.cursors.Cursor]:
        login = {**self._site.mysql.login, "user": self._site.user, "password": "", "database": self._site.database}
        return pymysql.connect(**login, autocommit=True)

    def _code_of(self, statement: str) -> str:
        """The number with which the product's own user is refused."""
        try:
            with self._as_product() as other:
                other.cursor().execute(statement)
        except pymysql.MySQLError as refused:
            return f"error {refused.args[0]}"
        return ""
