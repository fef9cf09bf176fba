"""``tandemq dead`` and ``tandemq audit`` in this process, on an app without servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tandemq import Filter, NonRetryable, TandemQ
from tandemq.acting import os_user
from tandemq.cli import exits, session
from tandemq.cli.entry import tandemq_command
from tandemq.testing import FakeClock, run_until_idle


@pytest.fixture
def app(tandemq_app: TandemQ, monkeypatch: pytest.MonkeyPatch) -> TandemQ:
    @tandemq_app.task(name="die", max_retries=0)
    def die(order_id: Any, text: str = "no stock") -> None:
        raise NonRetryable(text)

    monkeypatch.setattr(session, "TandemQ", lambda: tandemq_app)
    monkeypatch.setattr(tandemq_app, "close", lambda: None)
    return tandemq_app


def bury(app: TandemQ, *orders: Any, **options: Any) -> list[int]:
    text = options.pop("text", "no stock")
    ids = [app.enqueue("die", {"order_id": o, "text": text}, **options).id for o in orders]
    run_until_idle(app)
    return ids


def run(*args: object, stdin: str = "", code: int = 0) -> Result:
    """The command, with the exit codes of the real one."""
    result = CliRunner().invoke(tandemq_command, [str(a) for a in args], input=stdin, standalone_mode=False)
    answer = result.return_value
    if result.exception is not None:
        error = result.exception
        answer = exits.code_of(error) if isinstance(error, exits.TandemQError) else getattr(error, "exit_code", 1)
    assert answer == code, (result.output, result.exception)
    return result


def said(result: Result) -> str:
    return f"{result.output}{getattr(result.exception, 'message', result.exception or '')}"


def listed(*args: object) -> list[int]:
    shape = json.loads(run("dead", "list", "--json", *args).stdout)
    assert set(shape) == {"items", "next"}
    assert shape["next"] is None
    return [item["id"] for item in shape["items"]]


# list


def test_a_list_is_narrowed_by_payload_with_types(app: TandemQ) -> None:
    number, text, city = bury(app, 42, "42", {"city": "Bern"})

    assert listed("--where", "order_id=42") == [number]
    assert listed("--where", 'order_id="42"') == [text]
    assert listed("--where", "order_id.city=Bern") == [city]
    assert listed("--where", 'order_id={"city": "Bern"}') == [city]
    assert listed("--where", "order_id=42", "--where", "text=no stock") == [number]
    assert listed("--where", "order_id=42", "--where", "text=nothing") == []
    assert listed("--where", "order_id=NaN") == [], "what is no JSON is a text"
    for bad in (
        ["--where", "order_id"],
        ["--where", "=1"],
        ["--where", "a=1", "--where", "a=2"],
        ["--where", "a..b=1"],
    ):
        run("dead", "list", *bad, code=2)


def test_a_list_is_narrowed_by_age_key_and_worker(app: TandemQ, tandemq_clock: FakeClock) -> None:
    (old,) = bury(app, 1, idempotency_key="k")
    tandemq_clock.advance(7200)
    (young,) = bury(app, 2)

    assert listed("--older-than", "2h") == []
    assert listed("--older-than", "1h") == [old]
    assert listed("--newer-than", "2h") == [young, old]
    assert listed("--newer-than", "1h") == [young]
    assert listed("--newer-than", "999999999d") == [young, old]
    assert listed("--key", "k") == [old]
    worker = app.dead.show(young).worker_id
    assert listed("--worker", worker) == [young, old]
    assert listed("--worker", "nobody") == []
    assert listed("--reason", "timeout") == []
    assert listed("--dead-reason", "non_retryable", "--error-type", "NonRetryable", "--error", "stock") == [young, old]


def test_a_page_carries_its_next(app: TandemQ) -> None:
    ids = bury(app, 1, 2, 3)
    first = json.loads(run("dead", "list", "--json", "--limit", 2).stdout)
    assert ([i["id"] for i in first["items"]], first["next"]) == (ids[:0:-1], ids[1])
    assert listed("--limit", 2, "--after", first["next"]) == ids[:1]


def test_kinds_are_listed_instead_of_tasks(app: TandemQ) -> None:
    bury(app, 1, 2, text="order 7 of 'ann' is gone")
    (last,) = bury(app, 3)

    table = run("dead", "list", "--group-by", "error").stdout
    assert [line.split()[:3] for line in table.splitlines()] == [
        ["COUNT", "ERROR", "TYPE"], ["2", "NonRetryable", "order"], ["1", "NonRetryable", "no"],
    ]  # fmt: skip
    assert "order N of '...' is gone" in table
    shape = json.loads(run("dead", "list", "--group-by", "type", "--json").stdout)
    assert (shape["next"], shape["capped"], shape["total"]) == (None, False, 3)
    assert [(g["kind"], g["count"], g["example_id"]) for g in shape["items"]] == [("die", 3, last)]
    few = run("dead", "list", "--group-by", "error", "--limit", "1").stdout
    assert "of other kinds: 1" in few
    assert "no dead letters" in run("dead", "list", "--group-by", "queue", "--queue", "none").stdout
    run("dead", "list", "--group-by", "error", "--after", "5", code=2)
    run("dead", "list", "--group-by", "color", code=2)


# export and import


def test_an_export_is_json_lines_that_an_import_takes_once(app: TandemQ, tmp_path: Path) -> None:
    ids = bury(app, 1, 2, 3)
    path = tmp_path / "dead.ndjson"
    assert run("dead", "export", path).stdout == f"3 dead letters exported to {path}\n"
    piped = run("dead", "export", "-", "--where", "order_id=2")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert (sorted(line["id"] for line in lines), piped.stderr) == (ids, "1 dead letters exported\n")
    assert json.loads(piped.stdout) == app.dead.show(ids[1]).to_json()
    run("dead", "purge", "--type", "die", "--yes")

    first = run("dead", "import", path, "--reason", "second chance", "--json")
    again = run("dead", "import", "-", stdin=path.read_text())

    assert json.loads(first.stdout) == {"stored": 3, "existing": 0, "bad": 0, "lines": 3}
    assert again.stdout == "0 tasks stored, 3 already there\n"
    (record,) = (r for r in app.audit().items if r.action == "import")
    assert (record.n, record.reason, record.who, record.details) == (3, "second chance", os_user(), {"file": str(path)})


def test_an_import_stops_at_a_bad_line_and_says_which(app: TandemQ, tmp_path: Path) -> None:
    bury(app, 1, 2, 3)
    path = tmp_path / "dead.ndjson"
    run("dead", "export", path)
    run("dead", "purge", "--type", "die", "--yes")
    lines = path.read_text().splitlines()
    lines[1] = lines[1].replace('"status":"dead"', '"status":"running"')
    path.write_text("\n".join(lines))

    stopped = run("dead", "import", path, code=2)
    assert "line 2: status 'running' is not that of an exported dead letter" in str(stopped.exception)
    assert "go on with --skip 1" in stopped.stderr
    assert len(app.admin.find(Filter(state="ready")).items) == 1
    went_on = run("dead", "import", path, "--keep-going", code=1)
    assert went_on.stdout == "1 tasks stored, 1 already there, 1 bad lines\n"


def test_a_file_that_cannot_be_used_is_bad_input(app: TandemQ, tmp_path: Path) -> None:
    bury(app, 1)
    run("dead", "export", tmp_path / "none" / "x", code=1)  # 2 in the real command: see exits.run
    run("dead", "import", tmp_path / "none", code=1)
    run("dead", "purge", "--type", "die", "--yes", "--archive", tmp_path / "none" / "x", code=1)
    assert len(app.dead.search().items) == 1, "what cannot be archived is not deleted"


def test_an_export_that_is_cut_leaves_the_file_that_was_there(
    app: TandemQ, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bury(app, 1)
    path = tmp_path / "dead.ndjson"
    path.write_text("old\n")

    def cut(*_: Any, **__: Any) -> Any:
        yield app.dead.show(1)
        raise exits.Failed("the server went away")

    monkeypatch.setattr(app.dead, "export", cut)
    run("dead", "export", path, code=1)
    assert path.read_text() == "old\n"
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith("dead")] == ["dead.ndjson"]


# purge


def test_a_purge_wants_a_yes_and_says_how_many_it_would_take(app: TandemQ) -> None:
    ids = bury(app, 1, 2)
    bury(app, 3, idempotency_key="k")

    asked = run("dead", "purge", "--type", "die", code=2)
    assert "2 would be purged, 1 kept" in asked.stdout
    assert "nothing was deleted: add --yes" in said(asked)
    assert run("dead", "purge", ids[0], "--dry-run").stdout == "1 would be purged, 0 kept\n"
    shape = json.loads(run("dead", "purge", "--type", "die", "--dry-run", "--json").stdout)
    assert shape == {"purged": 2, "kept": 1, "dry_run": True}
    assert len(app.dead.search().items) == 3

    done = run("dead", "purge", "--dead-reason", "non_retryable", "--yes", "--reason", "test data", "--who", "ann")
    assert done.stdout == "2 purged, 1 kept\n"
    assert [(r.who, r.reason, r.n) for r in app.audit().items] == [("ann", "test data", 2)]
    run("dead", "purge", ids[0], "--yes", code=1)
    for bad in ([], ["--yes"], [ids[0], "--queue", "default", "--yes"]):
        run("dead", "purge", *bad, code=2)


def test_what_is_purged_is_archived_on_request(app: TandemQ, tmp_path: Path) -> None:
    ids = bury(app, 1, 2)
    path = tmp_path / "gone.ndjson"
    for task_id in ids:
        run("dead", "purge", task_id, "--yes", "--archive", path)
    assert [json.loads(line)["id"] for line in path.read_text().splitlines()] == ids


# audit


def test_the_audit_log_is_listed_for_all_and_for_one(app: TandemQ) -> None:
    first, second = bury(app, 1, 2)
    waiting = app.enqueue("die", {"order_id": 9}, delay=60).id
    run("cancel", waiting, "--reason", "customer\x1b[31m left", "--who", "ann")
    run("dead", "purge", first, second, "--yes")

    table = run("audit").stdout
    assert [line.split()[0] for line in table.splitlines()] == ["ID", "2", "1"]
    assert "\x1b" not in table
    one = json.loads(run("audit", "--task", first, "--json").stdout)
    assert [(r["action"], r["n"], r["details"]) for r in one["items"]] == [("purge", 2, {"ids": [first, second]})]
    page = json.loads(run("audit", "--limit", 1, "--json").stdout)
    assert (len(page["items"]), page["next"]) == (1, 2)
    rest = json.loads(run("audit", "--after", page["next"], "--json").stdout)
    assert (rest["items"][0]["who"], rest["items"][0]["task_id"], rest["next"]) == ("ann", waiting, None)
    assert "more: --after 2" in run("audit", "--limit", 1).stdout
    assert run("audit", "--task", 999).stdout == "nothing was done\n"
    assert app.why(waiting).endswith("by ann (customer\x1b[31m left).")
    assert "\x1b" not in run("why", waiting).stdout


def test_a_prune_says_who_and_why(app: TandemQ, tandemq_clock: FakeClock) -> None:
    bury(app, 1)
    tandemq_clock.advance(100)
    run("prune", "--older-than", "50s", "--status", "dead", "--yes", "--reason", "old", "--who", "cron")
    (record,) = app.audit().items
    assert (record.action, record.n, record.who, record.reason) == ("prune", 1, "cron", "old")
    assert record.details == {"statuses": ["dead"], "ended_before": "2030-01-01T00:00:50.000000Z"}
