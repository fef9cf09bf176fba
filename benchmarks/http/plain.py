"""What one would write without tandemq: an INSERT, a COMMIT and an LPUSH for each request, in Starlette's threads.

``python -m benchmarks.http.plain PORT``. The same table, framework, event loop and parser as ``tandemq api``, and a
pool of connections that are open already. What it does not do: check, authorise, retry, find keys, heal.
With BENCH_AUTOCOMMIT=1 the INSERT commits by itself, which saves a round trip.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from queue import LifoQueue
from typing import Any

import redis
import uvicorn
from sqlalchemy.engine import make_url
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

CONNECTIONS = 40  # as many as Starlette has threads
INSERT = (
    "INSERT INTO tandemq_tasks (queue, task_type, payload, options, priority, max_retries, idempotency_key, run_at,"
    " expires_at, created_at, updated_at) VALUES ('default', %s, %s, '', 0, 3, NULL, UTC_TIMESTAMP(6),"
    " '9999-12-31', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))"
)


class Pool:
    """Connections, opened when there is none to spare."""

    def __init__(self, url: str) -> None:
        parts = make_url(url)
        self._autocommit = os.environ.get("BENCH_AUTOCOMMIT") == "1"
        self._driver = importlib.import_module(parts.get_driver_name().replace("mysqldb", "MySQLdb"))
        names = ("passwd", "db") if self._driver.__name__ == "MySQLdb" else ("password", "database")
        self._given: dict[str, Any] = {
            "host": parts.host, "port": parts.port, "user": parts.username, names[0]: parts.password or "",
            names[1]: parts.database, "autocommit": self._autocommit, "charset": "utf8mb4",
        }  # fmt: skip
        self._free: LifoQueue[Any] = LifoQueue()
        for _ in range(CONNECTIONS):
            self._free.put(self._driver.connect(**self._given))

    def insert(self, statement: str, values: tuple[Any, ...]) -> int:
        connection = self._free.get()
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement, values)
                if not self._autocommit:
                    connection.commit()
                return int(cursor.lastrowid)
        finally:
            self._free.put(connection)


def application() -> Starlette:
    pool = Pool(os.environ["TANDEMQ_DATABASE_URL"])
    client = redis.Redis.from_url(os.environ["TANDEMQ_REDIS_URL"])

    def enqueue(job: dict[str, Any]) -> int:
        task_id = pool.insert(INSERT, (job["type"], json.dumps(job["payload"])))
        client.lpush("plain:{default}:ready:0", task_id)
        return task_id

    async def create(request: Request) -> JSONResponse:
        # A handler that is a plain function: Starlette calls it in a thread, here after its body has been read.
        job = await request.json()
        task_id = await run_in_threadpool(enqueue, job)
        return JSONResponse({"id": task_id, "status": "pending", **job}, 201)

    return Starlette(routes=[Route("/jobs", create, methods=["POST"])])


def main() -> None:
    uvicorn.run(
        application(), port=int(sys.argv[1]), loop="uvloop", http="httptools", ws="none", lifespan="off",
        access_log=False, log_level="error", server_header=False, backlog=2048,
    )  # fmt: skip


if __name__ == "__main__":
    main()
