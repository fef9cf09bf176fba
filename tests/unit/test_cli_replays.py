"""``tandemq dead replay`` and ``dead replays`` as operators type them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tandemq import NonRetryable, TandemQ
from tandemq.cli import exits, session
from tandemq.cli.entry import tandemq_command
from tandemq.testing import run_until_idle

Run = Callable[..., Any]


@pytest.fixture
def app(tandemq_app: TandemQ, monkeypatch: pytest.MonkeyPatch) -> TandemQ:
    @tandemq_app.task(name="pay", max_retries=0)
    def pay(order_id: int, city: str = "") -> None:
        raise NonRetryable("no money")

    monkeypatch.setattr(session, "TandemQ", lambda: tandemq_app)
    monkeypatch.setattr(tandemq_app, "close", lambda: None)
    return tandemq_app


def bury(app: TandemQ, count: int, **options: Any) -> list[int]:
    ids = [app.enqueue("pay", {"order_id": n}, **options).id for n in range(count)]
    run_until_idle(app)
    return ids


@pytest.fixture
def run(app: TandemQ, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """``run("replays", "show", 1, code=0)``: what it printed, its error if it is to fail with a code above 1."""

    def call(*args: object, code: int = 0) -> str:
        capsys.readouterr()
        assert exits.run(tandemq_command, ["dead", *map(str, args)]) == code
        said = capsys.readouterr()
        return said.out or said.err

    return call


@pytest.fixture
def document(run: Callable[..., str]) -> Callable[..., Any]:
    return lambda *args, code=0: json.loads(run(*args, "--json", code=code))


def test_a_dry_run_says_how_many_of_what(app: TandemQ, run: Run, document: Run) -> None:
    ids = bury(app, 3)

    shown = run("replay", "--all", "--dry-run")
    assert "    3  pay   NonRetryable" in shown
    assert "3 would be replayed" in shown
    assert document("replay", ids[0], "--dry-run")["found"] == 1
    assert document("replays")["items"] == []


def test_what_a_replay_is_told_reaches_it(app: TandemQ, document: Run) -> None:
    ids = bury(app, 5, queue="a")
    bury(app, 2, queue="b")

    answer = document(
        *("replay", "--queue", "a", "--type", "pay", "--rate", "50/s", "--limit", "4", "--edit", '{"city": "Bern"}'),
        *("--to-queue", "c", "--to-priority", "high", "--reason", "mended", "--who", "ann"),
    )
    assert (answer["moved"], answer["left"], answer["state"], answer["run_id"]) == (4, 0, "done", 1)
    task = app.get(ids[-1])
    assert task is not None
    assert (task.queue, task.priority, json.loads(task.payload)) == ("c", 20, {"order_id": 4, "city": "Bern"})
    (run_,) = document("replays")["items"]
    assert (run_["state"], run_["moved"], run_["created_by"], run_["reason"]) == ("done", 4, "ann", "mended")
    assert run_["selection"] == {"where": {"queue": "a", "state": "dead", "task_type": "pay"}}
    wanted = {"rate": 50.0, "limit": 4, "edit": {"city": "Bern"}, "queue": "c", "priority": 20}
    assert run_["orders"] == wanted


def test_an_edit_that_fits_nothing_fails_and_says_why(app: TandemQ, run: Run) -> None:
    ids = bury(app, 2)

    shown = run("replay", *ids, "--edit", '{"order_id": null}', code=1)
    assert "0 replayed, 0 skipped, 2 failed" in shown
    assert "2 failed: " in shown
    assert "order_id" in shown


@pytest.mark.parametrize(
    "args",
    [
        ["--rate", "fast"],
        ["--canary", "none"],
        ["--stop-if-failing", "120%"],
        ["--edit", "[1]"],
        ["--edit", "{"],
        ["--limit", "0"],
        ["--to-queue", "no queue"],
        ["--to-priority", "urgent"],
        ["--canary-wait", "long"],
    ],
)
def test_bad_input_is_refused_before_anything_is_begun(app: TandemQ, args: list[str], run: Run, document: Run) -> None:
    bury(app, 1)

    run("replay", "--all", *args, code=2)
    assert document("replays")["items"] == []


def test_a_run_is_listed_shown_paused_continued_and_cancelled(app: TandemQ, run: Run, document: Run) -> None:
    bury(app, 6)

    begun = document("replay", "--all", "--rate", "2/s", "--detach")
    assert (begun["state"], begun["moved"]) == ("selecting", 0)
    assert run("replays", "pause", 1, "--reason", "lunch") == "run 1 is paused: 0 replayed, 0 left\n"
    assert "lunch" in run("replays")
    assert "lunch" in run("replays", "list", "--open")
    assert "paused" in run("replays", "show", 1)
    assert document("replays", "continue", 1, "--detach")["state"] == "selecting"
    document("replays", "pause", 1)
    shown = run("replay", "--all", "--rate", "2/s", "--continue")
    assert "run 1 done: 6 replayed, 0 skipped, 0 failed" in shown
    assert document("replays", "show", 1)["state"] == "done"
    for verb in ("pause", "continue", "cancel"):
        assert "it cannot be changed any more" in run("replays", verb, 1, code=2)
    assert "no replay run has the id 9" in run("replays", "show", 9, code=1)
    document("replay", "--all", "--rate", "1/s", "--detach")
    assert document("replays", "cancel", 2)["state"] == "cancelled"
    assert document("replays", "list", "--open")["items"] == []
    page = document("replays", "list", "--limit", "1")
    assert ([one["id"] for one in page["items"]], page["next"]) == ([2], 2)
    page = document("replays", "list", "--limit", "1", "--after", "2")
    assert ([one["id"] for one in page["items"]], page["next"]) == ([1], None)


def test_continue_without_a_run_begins_one(app: TandemQ, document: Run) -> None:
    bury(app, 2)

    assert document("replay", "--all", "--continue")["moved"] == 2


def test_a_paused_run_fails_the_command_and_says_how_to_go_on(app: TandemQ, run: Run) -> None:
    bury(app, 4)

    shown = run("replay", "--all", "--canary", "2", "--canary-wait", "5s", code=1)
    assert "run 1 paused: 2 replayed, 0 skipped, 0 failed, 2 left" in shown
    assert "did not come within 5 s" in shown
    assert "to go on: tandemq dead replays continue 1" in shown
