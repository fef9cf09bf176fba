"""``tandemq api`` as operators run it: a process of its own, its log, its exit codes, and its end."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest
import redis

from tandemq.core.settings import Settings
from tests.api import app_of
from tests.apiprocess import refuses, running
from tests.http.wire import Wire, wire
from tests.scenarios.command_line import tandemq
from tests.servers import MySQLServer
from tests.waiting import eventually
from tests.workers import ROOT, environment

HALF = (
    b"POST /jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Content-Length: 12\r\nExpect: 100-continue\r\n\r\n"
)
TASK = {"type": "a"}


def begin(half: Wire) -> None:
    """Send a head; its request is at work when this comes back."""
    assert half.send(HALF).answer().status == 100


def claims_wait(settings: Settings) -> bool:
    """Whether somebody waits for a task in Redis."""
    with redis.Redis.from_url(settings.redis_url) as client:
        return any(one["cmd"] == "brpop" for one in client.client_list())


def test_it_serves_says_where_and_ends_well(env: Settings, tmp_path: Path) -> None:
    with running(env, tmp_path) as api:
        with api.client() as client, wire(api.url) as half:
            job = client.post("/jobs", json=TASK)
            assert job.status_code == 201
            begin(half)
            waiting: list[int] = []

            def claim() -> None:
                body = {"worker_id": "w", "queues": ["none"], "wait": 25}
                waiting.append(httpx.post(f"{api.url}/jobs/claim", json=body, timeout=60, trust_env=False).status_code)

            thread = threading.Thread(target=claim)
            thread.start()
            eventually(lambda: claims_wait(env))
            api.process.send_signal(signal.SIGTERM)
            thread.join()
            assert waiting == [204]
            last = half.send(b'{"type":"b"}').answer()
            assert last.status == 201
        assert api.wait() == 0
        lines = [line for line in api.text().splitlines() if "listening" in line]
        assert len(lines) == 1
        assert re.fullmatch(r"\S+ \S+ INFO \d+ tandemq\.http: listening on http://127\.0\.0\.1:\d+", lines[0])
    with app_of(env) as app:
        assert [app.get(i) is not None for i in (job.json()["id"], last.json["id"])] == [True, True]


@pytest.mark.parametrize("flags", [(), ("--workers", "2")])
def test_a_second_term_ends_it_at_once(env: Settings, tmp_path: Path, flags: tuple[str, ...]) -> None:
    with running(env, tmp_path, "--grace", "300", *flags) as api:
        with wire(api.url) as half:
            begin(half)
            half.send(b"{")
            api.process.send_signal(signal.SIGTERM)
            eventually(lambda: refuses(api.url))
            time.sleep(0.3)
            assert api.process.poll() is None, "a request is under way"
            children = api.children()
            api.process.send_signal(signal.SIGTERM)
            eventually(lambda: api.process.poll() is not None, 15)  # after 20 s the silent client would be cut off
            assert api.wait() == 1
        assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
        assert not list(tmp_path.glob("tandemq-metrics-*"))


def test_an_interrupt_is_an_end_too(env: Settings, tmp_path: Path) -> None:
    with running(env, tmp_path) as api:
        assert api.url
        api.process.send_signal(signal.SIGINT)
        assert api.wait() == 0


@pytest.mark.parametrize("folder_of", ["ours", "the user's"])
def test_several_processes_share_the_port_the_metrics_and_the_end(
    env: Settings, tmp_path: Path, folder_of: str
) -> None:
    def counted(client: httpx.Client) -> float:
        found = re.search(r"^tandemq_enqueued_total\{[^}]*\} (\S+)$", client.get("/metrics").text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    def enqueue(url: str) -> None:
        with httpx.Client(base_url=url, trust_env=False, timeout=60) as client:  # a connection of its own
            assert client.post("/jobs", json=TASK).status_code == 201

    (folder := tmp_path / "metrics").mkdir()
    more = {} if folder_of == "ours" else {"PROMETHEUS_MULTIPROC_DIR": str(folder)}
    with running(env, tmp_path, "--workers", "2", **more) as api:
        url = api.url
        assert "(2 processes)" in api.text()
        eventually(lambda: len(api.children()) == 2)
        for _ in range(20):
            enqueue(url)
        with api.client() as client:
            assert counted(client) == 20, "of both, whoever answers"
        first, second = api.children()

        for victim in (first, second):
            victim.kill()
            psutil.wait_procs([victim], 30)
            for _ in range(5):
                enqueue(url)  # nobody is refused: the other one, or the next one, accepts it
        eventually(lambda: len(api.children()) == 2 and not {first.pid, second.pid} & {p.pid for p in api.children()})
        for _ in range(10):
            enqueue(url)
        with api.client() as client:
            assert counted(client) == 40, "what a dead process had counted is not lost"

        children = api.children()
        left_by = {file.stem.rpartition("_")[2] for file in tmp_path.rglob("*.db")}
        if folder_of == "ours":
            assert left_by == {"0", "1"}, "however many there were"
        else:  # which has processes of others in it, whose numbers would be the same
            assert {str(child.pid) for child in children} <= left_by
            assert not {"0", "1"} & left_by
        api.process.send_signal(signal.SIGTERM)
        assert api.wait() == 0
        assert not [p for p in children if p.is_running()]
    assert bool(list(tmp_path.rglob("*.db"))) == (folder_of != "ours")


def test_processes_end_when_their_parent_is_killed(env: Settings, tmp_path: Path) -> None:
    with running(env, tmp_path, "--workers", "2") as api:
        url = api.url
        eventually(lambda: len(api.children()) == 2)
        children = api.children()
        with wire(url) as half:
            begin(half)
            api.process.kill()
            api.process.wait()
            assert half.send(b'{"type":"b"}').answer().status == 201, "what is under way is seen through"
        _, alive = psutil.wait_procs(children, 30)
        assert not alive
        assert not list(tmp_path.glob("tandemq-metrics-*"))
        assert refuses(url)


def test_a_stop_while_they_are_still_starting_is_no_failure(env: Settings, tmp_path: Path) -> None:
    with running(env, tmp_path, "--workers", "3") as api:
        eventually(lambda: len(api.children()) == 3, every_s=0.001)
        api.process.send_signal(signal.SIGTERM)
        assert api.wait() == 0


def test_a_process_that_cannot_start_ends_them_all(env: Settings, tmp_path: Path) -> None:
    (tmp_path / "once.py").write_text(
        "import os\nfrom tandemq import TandemQ\n"
        "if 'PROMETHEUS_MULTIPROC_DIR' in os.environ: raise RuntimeError('only the parent')\napp = TandemQ()\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "tandemq", "-A", "once:app", "api", "--port", "0", "--workers", "2"],
        cwd=tmp_path,
        env=environment(env) | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 1
    assert "only the parent" in done.stderr


# What keeps it from starting, and what does not


def test_what_cannot_work_is_said_at_the_start(
    env: Settings, tmp_path: Path, mysql_server: MySQLServer, redis_url: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        used = tandemq(env, "api", "--port", port, code=1)
    assert f"port {port} of 127.0.0.1 is in use" in used.err
    assert "tandemq token create" in tandemq(env, "api", "--host", "0.0.0.0", "--port", "0", code=2).err
    assert "'*'" in tandemq(env, "api", "--cors", "*", code=2).err
    assert "no file '/none'" in tandemq(env, "api", "--tls-cert", "/none", code=2).err
    tandemq(env, "token", "create", "t", "--role", "read")
    assert "cannot be resolved" in tandemq(env, "api", "--host", "no.such.host.invalid", code=2).err
    assert "TANDEMQ_API_PORT" in tandemq(env, "api", "--help").out

    empty = mysql_server.create_database()
    bare = Settings.load(env.environ() | {"TANDEMQ_DATABASE_URL": mysql_server.url(empty)})
    assert "tandemq migrate" in tandemq(bare, "api", code=1).err
    mysql_server.drop_database(empty)
    assert "refused" in tandemq(bare, "api", code=3).err, "there is no such database: no outage"

    other = mysql_server.create_database()
    foreign = Settings.load(env.environ() | {"TANDEMQ_DATABASE_URL": mysql_server.url(other)})
    tandemq(foreign, "migrate")
    tandemq(env, "reconcile", "--once")  # marks the namespace
    assert "belongs to install" in tandemq(foreign, "api", "--port", "0", code=1).err
    mysql_server.drop_database(other)


def test_off_loopback_it_starts_with_a_token(env: Settings, tmp_path: Path) -> None:
    token = tandemq(env, "token", "create", "t", "--role", "operate").out.strip()
    with running(env, tmp_path, "--host", "0.0.0.0") as api:
        url = api.url.replace("0.0.0.0", "127.0.0.1")
        with httpx.Client(base_url=url, trust_env=False, timeout=60) as client:
            assert client.post("/jobs", json=TASK).status_code == 401
            assert client.post("/jobs", json=TASK, headers={"Authorization": f"Bearer {token}"}).status_code == 201
        api.process.terminate()
        assert api.wait() == 0
        assert token not in api.text()


def test_with_tasks_registered_their_defaults_hold_and_payloads_are_checked(env: Settings, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "from tandemq import TandemQ\napp = TandemQ()\n"
        "@app.task(name='charge', queue='money', max_retries=7)\ndef charge(order: int): pass\n"
    )
    with running(env, tmp_path, before=("-A", "shop:app"), cwd=tmp_path) as api, api.client() as client:
        job = client.post("/jobs", json={"type": "charge", "payload": {"order": 1}}).json()
        assert (job["queue"], job["max_retries"]) == ("money", 7)
        bad = client.post("/jobs", json={"type": "charge", "payload": {"order": "one"}})
        assert (bad.status_code, bad.json()["field"].partition(".")[0]) == (400, "payload")
        api.process.terminate()
        assert api.wait() == 0


def test_it_starts_while_the_database_is_away_and_works_once_it_is_back(
    settings_for: Callable[..., Settings], own_mysql: Callable[..., MySQLServer], redis_url: str, tmp_path: Path
) -> None:
    mysql = own_mysql()
    settings = settings_for(mysql.url(mysql.create_database()), redis_url)
    mysql.stop()
    with running(settings, tmp_path) as api, api.client() as client:
        assert "until the database is back" in api.text()
        refused = client.post("/jobs", json=TASK)
        assert (refused.status_code, refused.headers["content-type"]) == (503, "application/problem+json")
        assert int(refused.headers["retry-after"]) >= 1
        assert client.get("/health/live").status_code == 200
        mysql.start()
        eventually(lambda: client.post("/jobs", json=TASK).status_code == 201)
        api.process.terminate()
        assert api.wait() == 0


def test_without_the_extra_it_says_what_to_install(tmp_path: Path) -> None:
    for module in ("starlette", "uvicorn"):
        program = (
            f"import sys; sys.modules[{module!r}] = None\n"
            "from tandemq.cli import main\n"
            "assert not {'starlette', 'uvicorn', 'prometheus_client'} & set(filter(sys.modules.get, sys.modules))\n"
            "main(['api'])"
        )
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
            env={"PYTHONPATH": str(ROOT / "src"), "PATH": os.environ["PATH"], "TANDEMQ_DATA_DIR": str(tmp_path)},
        )  # fmt: skip
        assert done.returncode == 2, done.stderr
        assert "pip install 'tandemq[http]'" in done.stderr
        assert "Traceback" not in done.stderr
