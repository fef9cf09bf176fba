"""Redis as a private process, or one that runs elsewhere."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.servers.process import Server
from tests.servers.programs import environment, need


@functools.cache
def _major(program: Path) -> int:
    done = subprocess.run([program, "--version"], env=environment(program), capture_output=True, text=True, check=True)
    found = re.search(r"v=(\d+)", done.stdout)
    assert found, done.stdout
    return int(found.group(1))


class RedisServer(Server):
    """A private redis-server without persistence; ``options`` are further command line options."""

    def __init__(self, *options: str) -> None:
        super().__init__("rd", *options)
        self.program = need("redis-server")

    def command(self) -> list[str]:
        """See ``Server``."""
        base = [str(self.program), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        debug = ["--enable-debug-command", "yes"] if _major(self.program) >= 7 else []  # unknown, and allowed, before 7
        return [*base, "--save", "", "--appendonly", "no", *debug, *self._users(), *self.options]

    def _users(self) -> list[str]:
        """Where the users of ``tests.recipes`` outlive a restart."""
        if os.environ.get("TANDEMQ_TEST_LEAST_PRIVILEGE", "") in {"", "0"}:
            return []
        (path := self.folder / "users.acl").touch()
        return ["--aclfile", str(path)]

    def ping(self) -> bool:
        """See ``Server``."""
        with contextlib.suppress(redis.RedisError), self.client(socket_timeout=2) as client:
            return bool(client.ping())
        return False

    def url(self, db: int = 0) -> str:
        """redis:// URL of a database of this server."""
        return f"redis://127.0.0.1:{self.port}/{db}"

    def client(self, db: int = 0, **options: Any) -> redis.Redis:
        """A redis-py client that never resends; answers are bytes unless ``decode_responses`` is given."""
        return redis.Redis(host="127.0.0.1", port=self.port, db=db, retry=Retry(NoBackoff(), 0), **options)

    def flush(self) -> None:
        """FLUSHALL."""
        with self.client() as client:
            client.flushall()


class ExternalRedis(RedisServer):
    """A server that runs elsewhere: it is used in the database its URL names, and never flushed as a whole."""

    def __init__(self, url: str) -> None:
        self.base = url

    def url(self, db: int = 0) -> str:
        """See ``RedisServer``; ``db`` is not ours to choose here."""
        return self.base

    def client(self, db: int = 0, **options: Any) -> redis.Redis:
        """See ``RedisServer``."""
        return redis.Redis.from_url(self.base, retry=Retry(NoBackoff(), 0), **options)

    def flush(self) -> None:
        """FLUSHDB of that database."""
        with self.client() as client:
            client.flushdb()
