"""Flags into calls, errors into exit codes: the application behind the command line is a recording stand-in."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tandemq.cli import exits, output, services, session
from tandemq.cli.entry import tandemq_command
from tandemq.core import errors
from tandemq.core.settings import Settings
from tandemq.core.task import UNSET, NewTask
from tandemq.store.answers import Filter, Page
from tandemq.worker.options import WorkerOptions


class Recorder:
    """Stands in for TandemQ: remembers what was asked, answers what the test wants, or raises ``error``."""

    def __init__(self) -> None:
        self.settings = Settings()
        self.asked: list[Any] = []
        self.error: Exception | None = None
        self.admin = self.dead = self

    def _ask(self, *what: Any) -> None:
        self.asked.append(what)
        if self.error is not None:
            raise self.error

    def import_tasks(self) -> None:
        pass

    def close(self) -> None:
        self.asked.append(("close",))

    def enqueue_many(self, news: list[NewTask]) -> list[Any]:
        self._ask("enqueue", *news)

        class Made:
            id, created = 7, True

        return [Made for _ in news]

    def find(self, where: Filter, *, limit: int, after: int | None) -> Page:
        self._ask("find", where, limit, after)
        return Page(())

    def search(self, where: Filter | None, *, limit: int, after: int | None) -> Page:
        self._ask("search", where, limit, after)
        return Page(())

    def cancel(self, task_id: int, **acts: str) -> str:
        self._ask("cancel", task_id, *acts.items())
        return "requested"


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr(session, "TandemQ", lambda: recorder)
    monkeypatch.setattr(session, "load_app", lambda spec: recorder)
    return recorder


def run(*args: str, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Through the real error handler."""

    @click.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True}, add_help_option=False)
    @click.pass_context
    def shell(ctx: click.Context) -> None:
        ctx.exit(exits.run(tandemq_command, list(args)))

    result = CliRunner().invoke(shell, [], env=env)
    return result.exit_code, result.stdout, result.stderr


def enqueued(app: Recorder, *args: str) -> NewTask:
    assert run("enqueue", *args)[0] == 0
    (new,) = app.asked[0][1:]
    assert isinstance(new, NewTask)
    return new


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ((), NewTask("t", {})),
        (('{"a": 1}',), NewTask("t", {"a": 1})),
        (("--priority", "high"), NewTask("t", {}, priority=20)),
        (("--priority", "-7"), NewTask("t", {}, priority=-7)),
        (("--delay", "1.5"), NewTask("t", {}, delay=1.5)),
        (("--run-at", "2030-01-01T01:00:00+01:00"), NewTask("t", {}, run_at=datetime(2030, 1, 1, tzinfo=UTC))),
        (("--expires", "60"), NewTask("t", {}, expires=60.0)),
        (("--expires", "2030-01-01T00:00:00Z"), NewTask("t", {}, expires=datetime(2030, 1, 1, tzinfo=UTC))),
        (("--max-retries", "0"), NewTask("t", {}, max_retries=0)),
        (("--key", "k", "--queue", "q"), NewTask("t", {}, idempotency_key="k", queue="q")),
        (("--timeout", "2"), NewTask("t", {}, timeout=2.0)),
        (("--timeout", "none"), NewTask("t", {}, timeout=None)),
    ],
)
def test_enqueue_flags_make_a_task(app: Recorder, args: tuple[str, ...], expected: NewTask) -> None:
    new = enqueued(app, "t", *args)

    assert new == expected
    assert (new.timeout is UNSET) == (expected.timeout is UNSET)


@pytest.mark.parametrize(
    "args",
    [
        ["--priority", "urgent"],
        ["--priority", "1001"],
        ["--priority", "1.5"],
        ["--priority", "9" * 5000],
        ["--delay", "-1"],
        ["--delay", "inf"],
        ["--delay", "soon"],
        ["--run-at", "2030-01-01T00:00:00"],
        ["--expires", "-1"],
        ["--expires", "later"],
        ["--max-retries", "many"],
        ["--timeout", "0"],
        ["--timeout", "None"],
        ["--queue", "a b"],
        ["--queue", ""],
        ["--no-such-flag"],
    ],
)
def test_flags_that_make_no_task_are_usage_errors(app: Recorder, args: list[str]) -> None:
    code, out, err = run("enqueue", "t", *args)

    assert (code, out) == (2, "")
    assert "Error" in err
    assert not any(asked[0] == "enqueue" for asked in app.asked)


def test_list_flags_make_a_filter(app: Recorder) -> None:
    run("list", "--status", "dead", "--queue", "q", "--type", "t", "--worker", "w", "--limit", "5", "--after", "9")

    where = Filter(state="dead", queue="q", task_type="t", worker_id="w")
    assert app.asked[0] == ("find", where, 5, 9)


def test_dead_list_flags_make_a_filter(app: Recorder) -> None:
    run("dead", "list", "--reason", "timeout", "--error", "x y", "--error-type", "E", "--cancelled")
    run("dead", "list")

    where = Filter(state="cancelled", reason="timeout", error_text="x y", error_type="E")
    assert [asked for asked in app.asked if asked[0] == "search"] == [
        ("search", where, 50, None),
        ("search", None, 50, None),
    ]


@pytest.mark.parametrize(
    ("args", "env", "expected"),
    [
        ([], {}, WorkerOptions()),
        (
            ["-q", "high,default", "-q", "low,high", "-c", "3", "-p", "2", "--burst", "--grace", "0", "--name", "n"],
            {},
            WorkerOptions(queues=("high", "default", "low"), slots=3, processes=2, burst=True, grace_s=0.0, name="n"),
        ),
        (
            ["--max-tasks", "5", "--max-memory", "200", "--no-mover", "--no-reconcile"],
            {},
            WorkerOptions(max_tasks=5, max_memory_mb=200, mover=False, reconcile=False),
        ),
        (
            [],
            {
                "TANDEMQ_WORKER_QUEUES": "a,b c",
                "TANDEMQ_WORKER_SLOTS": "4",
                "TANDEMQ_WORKER_BURST": "1",
                "TANDEMQ_WORKER_NO_MOVER": "1",
            },
            WorkerOptions(queues=("a", "b", "c"), slots=4, burst=True, mover=False),
        ),
    ],
)
def test_worker_flags_and_variables_make_options(
    app: Recorder, monkeypatch: pytest.MonkeyPatch, args: list[str], env: dict[str, str], expected: WorkerOptions
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(services, "run_worker", lambda *given: started.append(given) or 5)

    code, _, _ = run("-A", "shop:app", "worker", *args, env=env)

    assert code == 5, "the worker's own exit code"
    assert started == [("shop:app", app.settings, expected)]


@pytest.mark.parametrize(
    "args",
    [
        ["-c", "0"],
        ["-c", "10001"],
        ["-c", "two"],
        ["-p", "0"],
        ["-p", "513"],
        ["-q", "bad queue"],
        ["-q", ","],
        ["--grace", "-1"],
        ["--grace", "nan"],
        ["--max-tasks", "0"],
        ["--max-memory", "-5"],
        ["--name", "a b"],
        ["extra"],
    ],
)
def test_a_worker_refuses_bad_values(app: Recorder, monkeypatch: pytest.MonkeyPatch, args: list[str]) -> None:
    monkeypatch.setattr(services, "run_worker", lambda *given: 0)

    code, _, err = run("-A", "shop:app", "worker", *args)

    assert code == 2
    assert args[0] in err
    assert run("-A", "shop:app", "worker", "-c", "1")[0] == 0


def test_a_worker_without_an_application_is_a_usage_error(app: Recorder) -> None:
    code, _, err = run("worker")

    assert code == 2
    assert "TANDEMQ_APP" in err


@pytest.mark.parametrize(
    "args", [["replay"], ["purge"], ["replay", "1", "--all"], ["purge", "1", "--queue", "q"], ["purge", "--all"]]
)
def test_replay_and_purge_want_to_be_told_which_ones_in_one_way(app: Recorder, args: list[str]) -> None:
    assert run("dead", *args)[0] == 2
    assert app.asked in ([], [("close",)])


@pytest.mark.parametrize("bad", ["0", "x", "-1", "1.5", str(2**64), ""])
def test_an_id_is_a_positive_integer(app: Recorder, bad: str) -> None:
    for verb in ("show", "why", "cancel"):
        assert run(verb, "--", bad)[0] == 2


@pytest.mark.parametrize(
    "args",
    [
        ["enqueue"],
        ["enqueue", "t", "--file", "-"],
        ["enqueue", "--file", "-", "--key", "k"],
        ["enqueue", "--file", "-", "--timeout", "none"],
        ["enqueue", "t", "--skip", "1"],
        ["enqueue", "t", "--keep-going"],
        ["migrate", "--check", "--sql"],
        ["nonsense"],
    ],
)
def test_flags_that_do_not_go_together_are_usage_errors(app: Recorder, args: list[str]) -> None:
    assert run(*args)[0] == 2
    assert app.asked in ([], [("close",)])


def test_every_flag_of_every_verb_has_the_variable_that_its_name_promises() -> None:
    named = {
        flag.envvar
        for verb in tandemq_command.commands.values()
        for command in (verb.commands.values() if isinstance(verb, click.Group) else [verb])
        for flag in command.params
        if isinstance(flag, click.Option)
    }

    assert None not in named
    assert {"TANDEMQ_ENQUEUE_FILE", "TANDEMQ_WORKER_MAX_MEMORY", "TANDEMQ_DEAD_PURGE_JSON"} <= named
    assert not named & {field.metadata["var"] for field in dataclasses.fields(Settings)}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidTask("x"), 2),
        (errors.InvalidType("x"), 2),
        (errors.PayloadTooLarge("x"), 2),
        (errors.ConfigurationError("x"), 2),
        (errors.StoreUnavailable("x"), 3),
        (errors.BrokerUnavailable("x"), 3),
        (errors.TaskNotFound("x"), 1),
        (errors.NotMigrated("x"), 1),
        (errors.ForeignInstall("x"), 1),
        (errors.EnqueueUnknown("x"), 1),
        (errors.IdempotencyConflict("x", task_id=1), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_every_error_has_its_exit_code(app: Recorder, error: Any, code: int) -> None:
    app.error = error

    assert run("cancel", "1")[0] == code
    assert app.asked[-1] == ("close",), "connections are dropped whatever happened"


def test_an_error_is_one_line_without_secrets_or_control_characters(app: Recorder) -> None:
    app.error = errors.StoreUnavailable("no\n mysql://root:pa:ss@wo@db/x?password=abc&a=b \x1b[31mhere")

    code, out, err = run("cancel", "1")

    assert (code, out) == (3, "")
    assert err == "Error: no mysql://***@db/x?password=***&a=b \\x1b[31mhere\n"


def test_json_is_one_ascii_document(app: Recorder) -> None:
    code, out, _ = run("list", "--json")

    assert code == 0
    assert json.loads(out) == {"items": [], "next": None}


def test_foreign_lines_are_escaped_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    output.block("File x\n  \x1b[2J\r\u202e\n")

    assert capsys.readouterr().out == "    File x\n      \\x1b[2J\\r\\u202e\n"


def test_a_table_is_aligned_by_what_a_terminal_shows(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(("N", "TEXT", "END"), [(1, "abc", None), (23, "日本\x1b", "x" * 99)], empty="none")
    output.table(("N",), [], empty="none")

    assert capsys.readouterr().out.splitlines() == [
        " N  TEXT      END",
        " 1  abc       -",
        f"23  日本\\x1b  {'x' * 59}…",
        "none",
    ]
