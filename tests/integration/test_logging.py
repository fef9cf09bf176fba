"""A real worker's log as JSON: every line of every process one object, tasks named, passwords nowhere."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tandemq.core.settings import Settings
from tests.servers import MySQLServer
from tests.waiting import eventually
from tests.workers import Worker, bench

CANARY = "pw-c@nary/7"
ENCODED = "pw-c%40nary%2F7"


def lines(worker: Worker) -> list[dict[str, Any]]:
    return [json.loads(line) for line in worker.text().splitlines()]


def test_every_line_is_an_object_names_its_task_and_holds_no_password(
    settings_for: Callable[..., Settings], own_mysql: Callable[..., MySQLServer], redis_url: str, tmp_path: Path
) -> None:
    mysql = own_mysql()
    database = mysql.create_database()
    mysql.sql(f"CREATE USER canary@'%' IDENTIFIED BY '{CANARY}'")
    mysql.sql(f"GRANT ALL ON {database}.* TO canary@'%'")
    url = f"mysql+pymysql://canary:{ENCODED}@127.0.0.1:{mysql.port}/{database}"
    settings = settings_for(url, redis_url, mover_s=0.1, reconcile_s=0.5, heartbeat_s=0.5, lease_s=5.0)
    with bench(settings, tmp_path, {}) as work:
        flags = ("-c", "2", "-p", "2", "-q", "a,default", "--name", "mill")
        worker = work.worker(*flags, app="tests.apps.talking:app", TANDEMQ_LOG_FORMAT="json")
        ids = [work.app.enqueue("talk", {"n": n}, queue="a").id for n in range(5)]
        ids += [work.app.enqueue("atalk", {"n": n}, queue="default").id for n in range(5)]
        bad = work.app.enqueue("leak", {}).id
        assert work.ended([*ids, bad]) == {"succeeded": 10, "dead": 1}
        mysql.kill9()
        eventually(lambda: any("away" in line["message"] for line in lines(worker)), 60, worker.text)
        mysql.start()
        worker.signal(signal.SIGTERM)
        worker.wait()

        text = worker.text()
        for secret in (CANARY, ENCODED, json.dumps(CANARY)[1:-1]):
            assert secret not in text
        found = lines(worker)
        own = [line for line in found if line["logger"] in {"shop.library", "tandemq.task"}]
        said = {(line["task_id"], line["type"], line["queue"], line["attempt"]) for line in own}
        assert said >= {(task_id, "talk", "a", 1) for task_id in ids[:5]}
        assert said >= {(task_id, "atalk", "default", 1) for task_id in ids[5:]}
        assert {line["process"] for line in found} == {"worker", "child"}
        workers = {line.get("worker") for line in found if line["process"] == "child"}
        assert len(workers) == 1
        assert None not in workers
        assert any(line.get("task_id") == bad and "is dead" in line["message"] for line in found)
        assert any("ConnectionError" in line.get("exception", "") for line in found)
        assert any(line["logger"] == "py.warnings" for line in found)
