"""The examples run as their texts say, through a real worker; the broken ones are broken."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


@pytest.fixture(params=["embedded", pytest.param("servers", marks=pytest.mark.servers)])
def environ(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("TANDEMQ_")}
    variables = {"PYTHONPATH": str(ROOT / "src"), "TANDEMQ_DATA_DIR": str(tmp_path / "data")}
    if request.param == "servers":
        variables["TANDEMQ_DATABASE_URL"] = request.getfixturevalue("mysql_url")
        variables["TANDEMQ_REDIS_URL"] = request.getfixturevalue("redis_url")
        variables["TANDEMQ_NAMESPACE"] = request.getfixturevalue("namespace")
        tandemq(clean | variables, "migrate")
    return clean | variables


def tandemq(environ: dict[str, str], *args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tandemq", "-A", "shop:app", *args]
    done = subprocess.run(
        command, cwd=EXAMPLES, env=environ, input=stdin, capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done
    return done


def listed(environ: dict[str, str], *args: str) -> list[dict[str, Any]]:
    return list(json.loads(tandemq(environ, *args, "--limit", "1000", "--json").stdout)["items"])


def test_the_shop_processes_orders_and_every_fifth_dies_of_its_database(environ: dict[str, str]) -> None:
    orders = [{"type": "order.process", "payload": {"order_id": n}} for n in range(1, 21)]
    updates = [
        {"type": "order.process", "payload": {"order_id": n, "action": "update", "changes": {"city": "Bern"}}}
        for n in (21, 25)
    ]
    faulty = [
        {"type": "order.process", "payload": {"order_id": 31, "action": "destroy"}},
        {"type": "order.process", "payload": {"order_id": "x"}},
        {"type": "order.process", "payload": {}},
    ]
    mails = [
        {"type": "email.send", "payload": {"to": to, "subject": "Thanks", "body": "é"}} for to in ("a@example.org", "a")
    ]
    lines = "".join(json.dumps(task) + "\n" for task in [*orders, *updates, *faulty, *mails])

    tandemq(environ, "enqueue", "--file", "-", stdin=lines)
    log = tandemq(environ, "worker", "--burst")

    done = {task["payload"].get("order_id"): task for task in listed(environ, "list", "--status", "succeeded")}
    for n in (n for n in range(1, 21) if n % 5):
        assert (done[n]["result"], done[n]["attempts"]) == ({"order_id": n, "status": "created"}, 1)
    assert done[21]["result"] == {"order_id": 21, "status": "updated", "changes": {"city": "Bern"}}
    assert done[1]["priority_label"] == "medium"

    dead = listed(environ, "dead", "list")
    fifth = {task["payload"]["order_id"]: task for task in dead if task["dead_reason"] == "retries_exhausted"}
    assert sorted(fifth) == [5, 10, 15, 20, 25]
    for task in fifth.values():
        assert (task["attempts"], task["error_type"]) == (4, "DatabaseError")
        assert task["error"] == "database connection failed"
    others = [(task["payload"], task["dead_reason"], task["attempts"]) for task in dead if task["id"] not in
              {t["id"] for t in fifth.values()}]  # fmt: skip
    assert sorted(others, key=str) == sorted(
        [
            ({"order_id": 31, "action": "destroy"}, "non_retryable", 1),
            ({"order_id": "x"}, "validation", 1),
            ({}, "validation", 1),
            ({"to": "a", "subject": "Thanks", "body": "é"}, "non_retryable", 1),
        ],
        key=str,
    )
    mail = done[None]
    assert (mail["queue"], mail["result"]["to"], mail["result"]["bytes"]) == ("mail", "a@example.org", 2)
    assert mail["result"]["reference"] == f"tandemq-{mail['id']}"
    assert len(done) + len(dead) == len(orders) + len(updates) + len(faulty) + len(mails)
    assert f"order 5 needs a look: task {fifth[5]['id']} is dead" in log.stdout + log.stderr


def test_the_shop_script_waits_for_its_worker(environ: dict[str, str]) -> None:
    script = subprocess.Popen(
        [sys.executable, "shop.py"],
        cwd=EXAMPLES,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert script.stdout is not None
        assert script.stdout.readline().startswith("enqueued tasks ")
        tandemq(environ, "worker", "--burst")
        out, err = script.communicate(timeout=60)
    finally:
        script.kill()
    assert script.returncode == 0, err
    assert "{'order_id': 123, 'status': 'created'}" in out
    assert "'to': 'ada@example.org'" in out


def test_the_broken_files_do_not_parse_each_in_its_own_way() -> None:
    files = sorted((EXAMPLES / "broken").glob("*.py"))

    errors = set()
    for file in files:
        with pytest.raises(SyntaxError) as caught:
            ast.parse(file.read_bytes())
        errors.add(str(caught.value.msg).split("'")[0])

    assert len(files) == len(errors) == 3
