"""The command line on pages that are not full, numbers that are not exact, and tasks that go for good."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tandemq import TandemQ
from tandemq.cli import look, prune, session
from tandemq.cli.entry import tandemq_command
from tandemq.core.task import Task
from tandemq.pruning import Pruned
from tandemq.store.answers import Filter, Page

BEFORE = datetime(2026, 11, 23, tzinfo=UTC)
DAY = 86_400.0


class Stand:
    """Stands in for TandemQ: answers ``pages`` one after the other, and what ``prune`` is told to."""

    def __init__(self) -> None:
        self.admin = self.dead = self
        self.asked: list[Any] = []
        self.pages: list[Page] = []
        self.counts: dict[str, Any] = {}
        self.error: BaseException | None = None

    def close(self) -> None:
        pass

    def find(self, where: Filter, *, limit: int, after: int | None) -> Page:
        self.asked.append((where, limit, after))
        return self.pages.pop(0)

    search = find

    def stats(self) -> dict[str, Any]:
        return self.counts

    def prune(self, older_than: float, *, on_batch: Any = None, **options: Any) -> Pruned:
        self.asked.append((older_than, options))
        if on_batch is not None:
            on_batch(500)
        if self.error is not None:
            raise self.error
        return Pruned(500, 2, BEFORE, options.get("limit") is None)


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Stand:
    stand = Stand()
    monkeypatch.setattr(session, "TandemQ", lambda: stand)
    return stand


@pytest.fixture
def task(tandemq_app: TandemQ) -> Task:
    stored = tandemq_app.get(tandemq_app.enqueue("t", {}).id)
    assert stored is not None
    return stored


def run(*args: str, stdin: str = "", code: int = 0) -> Result:
    result = CliRunner().invoke(tandemq_command, list(args), input=stdin, standalone_mode=False)
    answer = result.return_value if result.exception is None else getattr(result.exception, "exit_code", 1)
    assert answer == code, (result.output, result.exception)
    return result


# Pages


@pytest.mark.parametrize("verb", [["list"], ["dead", "list"]], ids=" ".join)
def test_a_page_is_put_together_until_it_is_full(app: Stand, task: Task, verb: list[str]) -> None:
    page = [replace(task, id=i) for i in (90, 50, 40, 30)]
    app.pages = [Page((), 100), Page(tuple(page[:1]), 80), Page(tuple(page[1:]), 30)]

    shown = run(*verb, "--limit", "4", "--json")

    assert [(limit, after) for _, limit, after in app.asked] == [(4, None), (4, 100), (3, 80)]
    assert [item["id"] for item in json.loads(shown.output)["items"]] == [90, 50, 40, 30]
    assert json.loads(shown.output)["next"] == 30


def test_looking_ends_at_some_time_and_says_how_far_it_came(app: Stand, task: Task) -> None:
    app.pages = [Page((), 1000 - i) for i in range(look.LOOKS)] + [Page((task,), 7)]

    empty = run("list").output
    app.pages = [Page((task,), 9), *[Page((), 8)] * look.LOOKS]
    some = run("list").output

    assert "none so far" in empty
    assert f"down to id {1001 - look.LOOKS}; look further: --after {1001 - look.LOOKS}" in empty
    assert "no tasks" not in empty
    assert "down to id 8; look further: --after 8" in some


def test_the_last_page_and_a_full_one_say_nothing_of_it(app: Stand, task: Task) -> None:
    app.pages = [Page(()), Page((task, task), 5)]

    assert run("list").output == "no tasks\n"
    assert run("list", "--limit", "2").output.splitlines()[-1] == "more: --after 5"


def test_a_key_is_a_filter(app: Stand) -> None:
    app.pages = [Page(())]
    run("list", "--key", "order 7")

    assert app.asked == [(Filter(key="order 7"), 50, None)]


# Numbers


def test_numbers_that_are_no_counts_are_marked(app: Stand) -> None:
    states = {"ready": 9, "scheduled": 3, "retrying": 5, "running": 0}
    app.counts = {
        "queues": {"a": states, "b": states | {"capped": True, "estimated": True}, "c": states | {"estimated": True}},
        "ended": {"dead": 100_000, "succeeded": 7},
        "capped": ["dead"],
        "redis": None,
        "paused": [{"kind": "queue", "name": "c", "until": None}],
    }
    shown = run("stats").output

    assert [line.split("  ")[0].strip() for line in shown.splitlines()[1:4]] == [
        "a",
        "b (at least, about)",
        "c (about, paused)",
    ]
    assert "dead       100000 (at least)" in shown
    assert "succeeded  7\n" in shown
    assert "queue c is paused\n" in shown


# prune


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("12h", 43_200), ("7d", 7 * DAY), ("2w", 14 * DAY), ("1.5h", 5400), ("60", 60)],
)
def test_an_age_is_a_number_and_a_unit(app: Stand, text: str, seconds: float) -> None:
    run("prune", "--older-than", text)

    assert app.asked[0][0] == seconds


@pytest.mark.parametrize("text", ["", "d", "7 days", "-1d", "1e400", "nan", "7y"])
def test_what_is_no_age_is_a_usage_error(app: Stand, text: str) -> None:
    run("prune", "--older-than", text, code=2)
    assert app.asked == []


def test_prune_flags_are_options(app: Stand) -> None:
    shown = run(
        *("prune", "--older-than", "1d", "--status", "dead, succeeded", "--queue", "q", "--type", "t"),
        *("--limit", "9", "--yes", "--json"),
    )

    narrowing = {"queue": "q", "task_type": "t", "limit": 9}
    assert app.asked == [(DAY, {"statuses": ["dead", "succeeded"], "dry_run": False, **narrowing})]
    assert json.loads(shown.output) == {
        "removed": 500, "kept": 2, "before": "2026-11-23T00:00:00.000000Z", "complete": False,
        "statuses": ["dead", "succeeded"], "dry_run": False,
    }  # fmt: skip


def test_without_a_terminal_only_dead_tasks_want_a_yes(app: Stand) -> None:
    run("prune", "--older-than", "1d", "--status", "dead", code=2)
    assert app.asked == []
    run("prune", "--older-than", "1d", "--status", "dead", "--dry-run")
    shown = run("prune", "--older-than", "1d").output

    assert "500 tasks (cancelled, succeeded) that ended before 2026-11-23T00:00:00.000000Z removed; 2 kept: " in shown


@pytest.mark.parametrize(("said", "calls", "code"), [("y\n", 2, 0), ("n\n", 1, 1), ("\n", 1, 1)])
def test_on_a_terminal_it_asks_first(
    app: Stand, monkeypatch: pytest.MonkeyPatch, said: str, calls: int, code: int
) -> None:
    monkeypatch.setattr(prune, "sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True)))

    shown = run("prune", "--older-than", "1d", stdin=said, code=code)

    assert [options["dry_run"] for _, options in app.asked] == [True, False][:calls]
    asked = "Remove 500 tasks (cancelled, succeeded) that ended before 2026-11-23T00:00:00.000000Z for good? [y/N]"
    assert asked in shown.stderr


def test_an_interrupted_prune_says_what_it_has_removed(app: Stand) -> None:
    app.error = KeyboardInterrupt()
    result = CliRunner().invoke(tandemq_command, ["prune", "--older-than", "1d"], standalone_mode=False)

    assert "stopped; 500 tasks removed; the same command takes the rest" in result.stderr
