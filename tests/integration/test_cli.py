"""The command line as people and scripts use it: real processes, on the embedded default and on real servers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import pytest

from tandemq import TandemQ
from tandemq.cli import exits
from tandemq.cli.entry import tandemq_command
from tandemq.core.settings import Settings
from tandemq.core.task import NewRow
from tandemq.store.answers import Filter
from tests.servers import MySQLServer, RedisServer
from tests.waiting import eventually

T = TypeVar("T")
SRC = Path(__file__).parents[2] / "src"
JOBS = """
import time
from tandemq import TandemQ
from tandemq.cli import exits
from tandemq.cli.entry import tandemq_command

app = TandemQ()

@app.task(name="double", queue="math", priority="high")
def double(n):
    return n * 2

@app.task(name="fail", max_retries=0)
def fail(text="boom"):
    raise RuntimeError(text)
"""
TASK_KEYS = {
    "id", "id_str", "type", "queue", "payload", "priority", "priority_label", "status", "state", "attempts",
    "retry_count", "max_retries", "replays", "idempotency_key", "run_at", "next_attempt_at", "claimed_at",
    "started_at", "completed_at", "created_at", "worker_id", "error", "error_type", "dead_reason", "result",
    "attempts_log",
}  # fmt: skip


@dataclass
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Cli:
    """Runs ``python -m tandemq`` in a directory of its own, with the variables of one backend."""

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self.folder = folder
        # Unbuffered, Python drops what a closing reader did not take without an error.
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("TANDEMQ_", "PYTHONUNBUFFERED"))}
        self.env = {**clean, "PYTHONPATH": str(SRC), **variables}
        (folder / "jobs.py").write_text(JOBS)

    def start(self, *args: object, env: dict[str, str] | None = None, **options: Any) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tandemq", *map(str, args)]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        return subprocess.Popen(command, cwd=self.folder, env={**self.env, **(env or {})}, **pipes)

    def __call__(
        self, *args: object, code: int = 0, stdin: str | bytes = b"", env: dict[str, str] | None = None
    ) -> Answer:
        process = self.start(*args, env=env, stdin=subprocess.PIPE)
        out, err = process.communicate(stdin.encode() if isinstance(stdin, str) else stdin, timeout=90)
        answer = Answer(process.returncode, out.decode(), err.decode())
        assert answer.code == code, answer
        assert "Traceback" not in answer.err, answer.err
        return answer

    def enqueue(self, *args: object, **options: Any) -> int:
        return int(self("enqueue", *args, "--json", **options).json["id"])

    # What follows looks at the same data in this process: starting one for every glance would take minutes.

    @cached_property
    def app(self) -> TandemQ:
        given = Settings.load({k: v for k, v in self.env.items() if k.startswith("TANDEMQ_")})
        return TandemQ(
            given.database_url, given.redis_url, given.namespace, given.table_prefix, data_dir=given.data_dir
        )

    def put(self, task_type: str, payload: dict[str, Any] | None = None, **options: Any) -> int:
        return self.app.enqueue(task_type, payload or {}, **options).id

    def task(self, task_id: int) -> dict[str, Any]:
        return self.app.admin.show(task_id).to_json()

    def tasks(self) -> list[dict[str, Any]]:
        return [task.to_json() for task in self.app.admin.find(Filter(), limit=1000).items]

    def ids(self) -> list[int]:
        return [task["id"] for task in self.tasks()]

    def close(self) -> None:
        if "app" in self.__dict__:
            self.app.close()

    def burst(self) -> Answer:
        return self("-A", "jobs:app", "worker", "--burst")


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Cli]:
    cli = Cli(tmp_path, {"TANDEMQ_DATA_DIR": str(tmp_path / "data")})
    yield cli
    cli.close()


@pytest.fixture
def servers_cli(tmp_path: Path, mysql_url: str, redis_url: str, namespace: str) -> Iterator[Cli]:
    variables = {"DATABASE_URL": mysql_url, "REDIS_URL": redis_url, "NAMESPACE": namespace, "TABLE_PREFIX": "x_"}
    cli = Cli(tmp_path, {f"TANDEMQ_{name}": value for name, value in variables.items()})
    yield cli
    cli.close()


@pytest.fixture(params=["embedded", pytest.param("servers_cli", marks=pytest.mark.servers)])
def cli(request: pytest.FixtureRequest) -> Cli:
    cli: Cli = request.getfixturevalue(request.param)
    if request.param == "servers_cli":
        cli("migrate")
    return cli


def timed(call: Callable[[], T]) -> tuple[T, float]:
    begun = time.monotonic()
    return call(), time.monotonic() - begun


def lines(*bodies: object) -> str:
    return "".join((b if isinstance(b, str) else json.dumps(b)) + "\n" for b in bodies)


# migrate


def test_migrate_checks_prints_applies_and_does_nothing_twice(servers_cli: Cli) -> None:
    cli = servers_cli
    before = cli("stats", code=1)
    assert before.err.count("\n") == 1
    assert "tandemq migrate" in before.err
    pending = cli("migrate", "--check", "--json", code=1).json["pending"]
    assert pending
    assert "CREATE TABLE" in cli("migrate", "--sql").out
    assert cli("migrate", "--check", "--json", code=1).json["pending"] == pending, "--check and --sql apply nothing"

    assert cli("migrate", "--json").json == {"applied": pending}

    assert cli("migrate", "--json").json == {"applied": []}
    assert cli("migrate", "--check", "--json").json == {"pending": [], "lacking": []}
    assert cli("stats", "--json").json["queues"] == {}


# enqueue


def test_every_flag_of_enqueue_reaches_the_row(cli: Cli) -> None:
    task_id = cli.enqueue(
        "order.process", '{"order_id": 1, "name": "Zürich"}', "--queue", "q1", "--priority", "high", "--run-at",
        "2040-01-02T03:04:05+01:00", "--expires", "2041-01-01T00:00:00Z", "--max-retries", "7", "--key", "k 1",
        "--timeout", "2.5",
    )  # fmt: skip

    task = cli("show", task_id, "--json").json

    assert task == cli.task(task_id), "the one JSON shape of a task"
    assert set(task) == TASK_KEYS
    expected = {
        "id": task_id, "id_str": str(task_id), "type": "order.process", "queue": "q1", "priority": 20,
        "payload": {"order_id": 1, "name": "Zürich"}, "priority_label": "high", "status": "pending",
        "state": "scheduled", "max_retries": 7, "idempotency_key": "k 1", "run_at": "2040-01-02T02:04:05.000000Z",
        "attempts_log": [],
    }  # fmt: skip
    assert {name: task[name] for name in expected} == expected


def test_defaults_come_from_the_registered_task_and_else_from_tandemq(embedded: Cli) -> None:
    (embedded.folder / "root.py").write_text('from tandemq import TandemQ\napp = TandemQ(imports=["branch"])\n')
    (embedded.folder / "branch.py").write_text(JOBS.replace("app = TandemQ()", "from root import app"))
    registered = embedded.task(embedded("-A", "root:app", "enqueue", "double", '{"n": 1}', "--json").json["id"])
    unknown = embedded.task(embedded.enqueue("double", '{"n": 1}', "--priority", "-15", "--delay", "0"))

    assert (registered["queue"], registered["priority_label"]) == ("math", "high")
    assert (unknown["queue"], unknown["priority"], unknown["max_retries"]) == ("default", -15, 3)
    assert unknown["state"] == "ready"


def test_a_key_makes_one_task_and_a_conflict_names_it(cli: Cli) -> None:
    first = cli("enqueue", "t", "{}", "--key", "k", "--json").json
    again = cli("enqueue", "t", "{}", "--key", "k", "--json").json
    conflict = cli("enqueue", "t", '{"n": 1}', "--key", "k", code=1)

    assert first == {"id": first["id"], "id_str": str(first["id"]), "created": True}
    assert again == {**first, "created": False, "state": "ready"}
    assert str(first["id"]) in conflict.err
    assert cli.ids() == [first["id"]]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["t", "{"], "payload is not JSON"),
        (["t", "[]"], "payload must be a JSON object"),
        (["t", "null"], "payload must be a JSON object"),
        (["t", '{"a": NaN}'], "NaN is not JSON"),
        (["t", '{"a": "\\ud800"}'], "payload.a holds a lone surrogate"),
        (["bad type"], "bad type"),
        (["t", "{}", "--max-retries", "-1"], "max_retries must be between 0"),
        (["t", "{}", "--delay", "5", "--run-at", "2040-01-01T00:00:00Z"], "exclude each other"),
        (["t", "{}", "--key", ""], "idempotency_key must not be empty"),
        (["t", json.dumps({"a": "x" * 1_000})], "the limit is 500"),
    ],
)
def test_bad_input_is_refused_with_exit_code_2_and_nothing_is_stored(
    embedded: Cli, args: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TANDEMQ_DATA_DIR", embedded.env["TANDEMQ_DATA_DIR"])
    monkeypatch.setenv("TANDEMQ_MAX_PAYLOAD_BYTES", "500")

    assert exits.run(tandemq_command, ["enqueue", *args]) == 2

    out, err = capsys.readouterr()
    assert said in err
    assert out == ""
    assert embedded.ids() == []


# enqueue --file


def test_a_file_is_stored_in_order(cli: Cli) -> None:
    bodies = [{"type": "double", "payload": {"n": n}, "queue": "math"} for n in range(2_300)]
    path = cli.folder / "tasks.ndjson"
    path.write_text(lines(*bodies))

    answer = cli("enqueue", "--file", path, "--json")

    assert answer.json == {"stored": 2300, "existing": 0, "bad": 0, "lines": 2300}
    assert "enqueueing" not in answer.err, "a progress bar belongs on a terminal"
    assert [task["payload"]["n"] for task in cli.tasks()] == list(range(2299, 1299, -1))
    stats = cli("stats", "--json").json
    assert stats["queues"]["math"]["ready"] == stats["redis"]["math"]["ready"] == 2300
    assert cli("stats").out.splitlines()[1].split() == ["math", "2300", "0", "0", "0", "2300"]


def test_a_file_stops_at_the_first_bad_line_and_skip_goes_on(embedded: Cli) -> None:
    bodies: list[object] = [{"type": "t", "payload": {"n": n}} for n in range(1, 6)]
    broken = [*bodies[:3], {"type": "t", "payload": {"n": 4}, "priority": "hgih"}, bodies[4]]

    stopped = embedded("enqueue", "--file", "-", stdin=lines(*broken), code=2)

    assert "line 4: priority 'hgih' is unknown" in stopped.err
    assert "3 tasks stored" in stopped.err
    assert "--skip 3" in stopped.err
    assert len(embedded.ids()) == 3

    embedded("enqueue", "--file", "-", "--skip", "3", stdin=lines(*bodies))

    assert [task["payload"]["n"] for task in embedded.tasks()] == [5, 4, 3, 2, 1]


def test_keep_going_reports_bad_lines_and_stores_the_rest(embedded: Cli) -> None:
    good = {"type": "t", "payload": {}}
    source = lines(good, "junk", good, {"type": "t", "payloda": {}}, {"type": "t", "max_retries": -1}, good)

    answer = embedded("enqueue", "--file", "-", "--keep-going", "--json", stdin=source, code=1)

    assert answer.json == {"stored": 3, "existing": 0, "bad": 3, "lines": 6}
    assert [line.split(":")[0] for line in answer.err.splitlines() if line.startswith("line")] == [
        "line 2",
        "line 4",
        "line 5",
    ]
    assert len(embedded.ids()) == 3


def test_keys_in_a_file_may_be_sent_twice(embedded: Cli) -> None:
    source = lines(*[{"type": "t", "payload": {"n": n}, "idempotency_key": f"k{n}"} for n in range(30)])

    first = embedded("enqueue", "--file", "-", "--json", stdin=source).json
    second = embedded("enqueue", "--file", "-", "--json", stdin=source).json

    assert (first["stored"], second["stored"], second["existing"]) == (30, 0, 30)


# looking


def test_lists_are_filtered_and_paged(cli: Cli) -> None:
    ids = [cli.put("t", {"n": n}, queue=f"q{n % 2}") for n in range(4)]
    cli.app.cancel(ids[0])

    first = cli("list", "--limit", "3", "--json").json
    second = cli("list", "--limit", "3", "--after", first["next"], "--json").json

    assert ([i["id"] for i in first["items"]], [i["id"] for i in second["items"]]) == (ids[:0:-1], ids[:1])
    assert second["next"] is None
    assert all(set(item) == TASK_KEYS for item in first["items"])
    ready = cli("list", "--queue", "q1", "--status", "ready").out.splitlines()
    assert [line.split()[:4] for line in ready] == [
        ["ID", "STATE", "TYPE", "QUEUE"],
        [str(ids[3]), "ready", "t", "q1"],
        [str(ids[1]), "ready", "t", "q1"],
    ]
    assert "no tasks" in cli("list", "--type", "t", "--worker", "nobody").out


def test_cancel_answers_what_became_of_it(embedded: Cli) -> None:
    task_id = embedded.put("t")

    assert embedded("cancel", task_id, "--json").json["cancel"] == "cancelled"
    assert "cancelled" in embedded("cancel", task_id).out, "asked for twice it still holds"
    assert embedded.task(task_id)["status"] == "cancelled"


def test_unknown_ids_are_failures(embedded: Cli) -> None:
    for verb in (["show"], ["dead", "show"], ["cancel"]):
        assert "999" in embedded(*verb, "999", code=1).err
    assert "does not exist" in embedded("why", "999").out


def test_why_is_one_sentence(embedded: Cli) -> None:
    task_id = embedded.put("t", delay=3600)

    answer = embedded("why", task_id)

    assert "not due before" in answer.out
    assert len(answer.out.splitlines()) == 1
    assert embedded("why", task_id, "--json").json == {"id": task_id, "id_str": str(task_id), "why": answer.out.strip()}


# working and dead letters


def test_a_worker_runs_tasks_and_dead_letters_are_listed_replayed_and_purged(cli: Cli) -> None:
    good = cli.put("double", {"n": 21}, queue="math")
    bad = cli.put("fail", {"text": "no luck"}, max_retries=0)

    cli.burst()

    task = cli.task(good)
    assert (task["state"], task["result"], task["attempts"]) == ("succeeded", 42, 1)
    assert "succeeded" in cli("cancel", good, code=1).err

    letters = cli("dead", "list", "--json").json
    assert letters["next"] is None
    assert [item["id"] for item in letters["items"]] == [bad]
    dead = cli("dead", "show", bad, "--json").json
    assert (dead["dead_reason"], dead["error"], dead["error_type"]) == ("retries_exhausted", "no luck", "RuntimeError")
    assert [entry["error"] for entry in dead["attempts_log"]] == ["no luck"]
    assert "no luck" in cli("dead", "list").out
    shown = cli("show", bad).out
    assert "attempt 1: failed" in shown
    assert "raise RuntimeError" in shown

    assert cli("dead", "list", "--error", "other", "--json").json["items"] == []
    assert replayed(cli("dead", "replay", "--type", "double", "--json").json) == (0, 0, "done")
    answer = cli("dead", "replay", good, bad, "--json", code=1).json
    assert (replayed(answer), answer["run_id"]) == ((1, 1, "done"), None)
    assert answer["reasons"] == [{"outcome": "skipped", "why": "it is succeeded", "n": 1}]
    cli.burst()
    again = cli.task(bad)
    assert (again["state"], again["replays"], len(again["attempts_log"])) == ("dead", 1, 2)

    assert replayed(cli("dead", "replay", "--all", "--json").json) == (1, 0, "done")
    cli.app.cancel(bad)
    assert cli("dead", "purge", "--queue", "default", "--yes", "--json").json == {"purged": 0, "kept": 0}
    asked = cli("dead", "purge", "--cancelled", code=2)
    assert ("1 would be purged" in asked.out, "add --yes" in asked.err, len(cli.ids())) == (True, True, 2)
    assert cli("dead", "purge", "--cancelled", "--yes", "--json").json == {"purged": 1, "kept": 0}
    assert cli.ids() == [good]
    assert cli("stats", "--json").json["ended"]["succeeded"] == 1


def replayed(answer: dict[str, Any]) -> tuple[int, int, str]:
    assert (answer["failed"], answer["left"]) == (0, 0)
    return answer["moved"], answer["skipped"], answer["state"]


def test_a_running_worker_is_listed_and_stops_on_term(cli: Cli) -> None:
    worker = cli.start("-A", "jobs:app", "worker", "-q", "math,default", "-c", "3", "--name", "box")
    try:
        eventually(cli.app.workers, 60)
        listed = cli("workers", "--json").json["items"]
        assert [(w["name"], w["slots"], w["queues"], w["alive"]) for w in listed] == [("box", 3, "math,default", True)]
        task_id = cli.put("double", {"n": 4}, queue="math")
        eventually(lambda: cli.task(task_id)["state"] == "succeeded", 60)
        mine = cli("list", "--worker", listed[0]["id"], "--json").json["items"]
        assert [task["id"] for task in mine] == [task_id]
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0
    finally:
        worker.kill()
        worker.communicate()
    assert not cli.app.workers()[0].alive
    assert "stopped" in cli("workers").out


def test_an_application_that_cannot_be_loaded_is_bad_input(embedded: Cli) -> None:
    assert "jobs" in embedded("-A", "jobs", "worker", code=2).err
    assert "nope" in embedded("-A", "jobs:nope", "worker", code=2).err
    assert "str" in embedded("-A", "jobs:__name__", "worker", code=2).err
    (embedded.folder / "broken.py").write_text("import jobs\n\n1 / 0\n")
    assert "ZeroDivisionError" in embedded("-A", "broken:app", "worker", code=2).err
    embedded("worker", "--burst", env={"TANDEMQ_APP": "jobs:app"})


def test_mover_and_reconciler_run_on_their_own_until_a_signal(cli: Cli) -> None:
    moved = cli.put("double", {"n": 1}, delay=1)
    stranded = int(cli.app.store.insert([NewRow("double", '{"n": 2}', "other", 0, 3)])[0].id)

    def in_redis() -> dict[str, dict[str, int]]:
        return dict(cli.app.stats()["redis"])

    for verb, number, queue in (("mover", signal.SIGTERM, "default"), ("reconcile", signal.SIGINT, "other")):
        process = cli.start(verb)
        try:
            eventually(lambda queue=queue: in_redis().get(queue) == {"ready": 1, "delayed": 0}, 60, in_redis)
            process.send_signal(number)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
        assert process.returncode == 0, err
    assert [cli.task(task_id)["state"] for task_id in (moved, stranded)] == ["ready", "ready"]


def test_reconcile_once_reports_what_it_did(embedded: Cli) -> None:
    report = embedded("reconcile", "--once", "--json").json

    assert report["alarms"] == []
    assert report["repushed"] == 0
    assert "repushed" in embedded("reconcile", "--once").out


# faults, secrets, terminals


def test_servers_that_cannot_be_reached_are_exit_code_3_without_a_secret(embedded: Cli) -> None:
    variables = {
        "TANDEMQ_DATABASE_URL": "mysql+pymysql://root:s3cret@127.0.0.1:1/x",
        "TANDEMQ_REDIS_URL": "redis://:s3cret@127.0.0.1:1/0",
    }
    for args in (["stats"], ["migrate"], ["enqueue", "t", "{}"], ["list"], ["-A", "jobs:app", "worker", "--burst"]):
        answer = embedded(*args, code=3, env=variables)
        assert "s3cret" not in answer.err + answer.out
        assert answer.err.splitlines()[-1].startswith("Error: ")


@pytest.mark.servers
def test_enqueue_stores_and_answers_quickly_while_redis_is_away(
    servers_cli: Cli, own_redis: Callable[..., RedisServer]
) -> None:
    redis = own_redis()
    servers_cli.env["TANDEMQ_REDIS_URL"] = redis.url()
    servers_cli("migrate")
    healthy, hindered = [timed(lambda: servers_cli.enqueue("t", "{}"))[1]], []

    for hurt, heal in ((redis.sigstop, redis.sigcont), (redis.stop, redis.start)):
        hurt()
        task_id, took_s = timed(lambda: servers_cli.enqueue("t", "{}"))
        assert "away" in servers_cli("stats").out.split()
        heal()
        hindered.append(took_s)
        assert servers_cli.task(task_id)["state"] == "ready"
        healthy.append(timed(lambda: servers_cli.enqueue("t", "{}"))[1])
    assert max(hindered) < 2 + 2 * max(healthy), "two seconds, and the start of a process on a busy machine"

    def bulk() -> Answer:
        return servers_cli("enqueue", "--file", "-", "--json", stdin=lines(*[{"type": "t"}] * 3000))

    _, healthy_s = timed(bulk)
    redis.stop()
    answer, took_s = timed(bulk)
    assert answer.json["stored"] == 3000
    assert took_s < 2 + 2 * healthy_s, "not two seconds for every batch"


@pytest.mark.servers
def test_passwords_with_special_characters_work_encoded_and_are_refused_raw(
    servers_cli: Cli, mysql_server: MySQLServer, own_redis: Callable[..., RedisServer]
) -> None:
    password, user = "p@ss#1/%:?", f"u{os.getpid()}"
    mysql_server.sql("CREATE USER %s@'%%' IDENTIFIED BY %s", (user, password))
    try:
        mysql_server.sql("GRANT ALL ON *.* TO %s@'%%'", (user,))
        redis = own_redis()
        with redis.client() as client:
            client.config_set("requirepass", password)
        for name, login in (("DATABASE_URL", f"{user}:"), ("REDIS_URL", ":")):
            url = servers_cli.env[f"TANDEMQ_{name}"] if name == "DATABASE_URL" else redis.url()
            scheme, rest = url.split("://", 1)
            servers_cli.env[f"TANDEMQ_{name}"] = f"{scheme}://{login}{quote(password, safe='')}@{rest.split('@')[-1]}"
        servers_cli("migrate")
        good = servers_cli.enqueue("double", '{"n": 1}')
        servers_cli.burst()
        assert servers_cli.task(good)["state"] == "succeeded"
        assert servers_cli("stats", "--json").json["redis"] is not None
    finally:
        servers_cli.close()
        mysql_server.sql("DROP USER %s@'%%'", (user,))


def test_settings_that_cannot_work_are_exit_code_2(embedded: Cli) -> None:
    one = embedded("stats", code=2, env={"TANDEMQ_REDIS_URL": "redis://127.0.0.1"})
    assert "TANDEMQ_DATABASE_URL" in one.err
    raw = "mysql+pymysql://root:p@ss#1/%:?@127.0.0.1/x"
    encode = embedded("stats", code=2, env={"TANDEMQ_REDIS_URL": "redis://h", "TANDEMQ_DATABASE_URL": raw})
    assert "percent-encode" in encode.err
    assert "p@ss" not in encode.err
    assert "TANDEMQ_LEASE_S" in embedded("stats", code=2, env={"TANDEMQ_LEASE_S": "soon"}).err


def test_foreign_text_cannot_reach_the_terminal_raw(embedded: Cli) -> None:
    evil = "\x1b]0;pwned\x07\x1b[2J\r\u202e\x9b31m\nforged line"
    bad = embedded.put("fail", {"text": evil}, max_retries=0)
    embedded.burst()

    for args in (["show", bad], ["show", bad, "--json"], ["dead", "list"], ["why", bad]):
        out = embedded(*args).out
        assert all(c.isprintable() or c == "\n" for c in out), args
        assert "\nforged line" not in out, args
    assert embedded.task(bad)["error"] == evil


def test_flags_have_variables(embedded: Cli) -> None:
    ids = [embedded.put("t") for _ in range(2)]

    answer = embedded("list", env={"TANDEMQ_LIST_LIMIT": "1", "TANDEMQ_LIST_JSON": "1"})

    assert [item["id"] for item in answer.json["items"]] == ids[1:]


def test_an_interrupted_import_says_how_much_is_stored(embedded: Cli) -> None:
    process = embedded.start("enqueue", "--file", "-", stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(lines(*[{"type": "t"}] * 1000).encode())
    process.stdin.flush()
    eventually(lambda: embedded.app.stats()["queues"], 60)  # which may be before the call that inserts has returned

    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)

    assert process.returncode == 130
    assert b"1000 tasks stored" in err
    assert b"--skip 1000" in err
    assert b"Traceback" not in err


def test_a_reader_that_goes_away_is_no_error(embedded: Cli) -> None:
    for _ in range(4):
        embedded.put("t", {"text": "x" * 1_000_000})

    process = embedded.start("list", "--json")
    assert process.stdout is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr is not None
    err = process.stderr.read()

    assert process.wait(60) == 141
    assert b"Traceback" not in err
    assert b"Broken" not in err


def test_help_and_version(embedded: Cli) -> None:
    out = embedded("--help").out
    verbs = [line.split()[0] for line in out.split("Commands:")[1].splitlines() if line.strip()]
    first = [
        "api",
        "audit",
        "bench",
        "cancel",
        "dead",
        "demo",
        "doctor",
        "drain",
        "enqueue",
        "health",
        "list",
        "migrate",
        "mover",
    ]
    more = ["pause", "prune", "queue", "reconcile", "resume", "show", "stats", "token", "top"]
    assert verbs == [*first, *more, "why", "worker", "workers"]
    assert "tandemq" in embedded("--version").out
    assert "TANDEMQ_WORKER_SLOTS" in embedded("worker", "--help").out
    embedded("nonsense", code=2)
